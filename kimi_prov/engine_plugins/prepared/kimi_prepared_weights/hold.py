"""Holds the weights of an engine: `python -m kimi_prepared_weights.hold` for `vllm preload`.

It takes an engine's whole command line, and leaves out what only a server knows. vLLM's command
starts a process for each rank, in which no plugin is loaded; here ours is.
"""

from __future__ import annotations

from typing import Any

from vllm.utils.argparse_utils import FlexibleArgumentParser


class EngineParser(FlexibleArgumentParser):
    """Parses what it knows of a command line, and nothing by a shortened name."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, *arguments: Any, **options: Any) -> tuple[Any, list[str]]:  # noqa: ANN401
        """Leave out what is not known."""
        return super().parse_known_args(*arguments, **options)[0], []


def main() -> None:
    """Hold weights until SIGTERM."""
    from vllm.entrypoints.cli.preload import PreloadSubcommand  # noqa: PLC0415
    from vllm.model_executor.model_loader.weight_cache import daemon  # noqa: PLC0415

    from kimi_prepared_weights import resident  # noqa: PLC0415

    parser = EngineParser()
    PreloadSubcommand.add_cli_args(parser)
    options = parser.parse_args()
    # The command takes the function from there, and its processes find ours by its own name.
    daemon._run_daemon = resident.hold_rank
    PreloadSubcommand.cmd(options)


if __name__ == "__main__":
    main()
