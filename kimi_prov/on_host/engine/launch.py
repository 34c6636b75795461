"""`engine -m MODULE ARGUMENT...` starts an engine behind the gate, in the engine's own python.

With `--headless` among vLLM's arguments it starts a rank that another host serves for: it opens no
port for requests, and needs no gate.

vLLM's own key guards some of its paths only, and sglang takes one on its command line, which
everybody may read, and logs it. So neither gets the key that way: the gate reads it from its file.

Decides: the machine key between proxy and engine (how an engine gets that gate).
"""

from __future__ import annotations

import argparse
import functools
import os
import runpy
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import paths
from kimi_prov.contract.errors import EXIT_TRANSIENT, HostError
from kimi_prov.on_host.engine.gate import Gate
from kimi_prov.on_host.system import machine_key

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADLESS = "--headless"
# As vLLM imports it.
GATE = f"{Gate.__module__}.{Gate.__qualname__}"


class Hidden(str):
    """A key that a server may send and compare, and that its log of settings does not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return what stands in a log."""
        return "'***'"


def main(argv: list[str]) -> int:
    """Run the engine's module as python itself would; return when it ends."""
    if len(argv) < 2 or argv[0] != "-m":
        raise HostError("usage: engine -m MODULE ARGUMENT...")
    module, arguments = argv[1], argv[2:]
    engine = module.partition(".")[0]
    if engine == "vllm" and _HEADLESS in arguments:
        return _report_error(lambda: run_headless(arguments))
    key = machine_key.read(Path(paths.MACHINE_KEY))
    if not key:
        raise HostError(f"there is no key in {paths.MACHINE_KEY}", "run `kimi-prov apply`")
    if engine == "vllm":
        arguments += ["--middleware", GATE]
    elif engine == "sglang":
        guard_sglang(key)
    else:
        raise HostError(f"{module} is no engine that the machine key is known to guard")
    return start(module, arguments)


def start(module: str, arguments: list[str]) -> int:
    """Run a module as `python -m` would; return when it ends."""
    sys.argv = [module, *arguments]
    _prefer_engine_modules()
    return _report_error(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def run_headless(arguments: list[str]) -> None:
    """Run vLLM's workers of this host for a head elsewhere, until they end.

    Its server's module parses `--headless` and then serves all the same; `vllm serve` does not, and
    asks for metadata of a package that the CPU build lacks. So its parser and what that calls are
    used as they are.
    """
    _prefer_engine_modules()
    # As vLLM's own entry points do before they parse.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    sys.argv = ["vllm", *arguments]
    serve: Any = import_module("vllm.entrypoints.cli.serve")
    given = serve.make_arg_parser(serve.FlexibleArgumentParser()).parse_args()
    serve.validate_parsed_serve_args(given)
    given.api_server_count = 0
    serve.run_headless(given)


def _prefer_engine_modules() -> None:
    """Let what this file brings along besides its own code hide no module of the engine's."""
    sys.path.append(sys.path.pop(0))


def _report_error(run: Callable[[], object]) -> int:
    try:
        run()
    except Exception:  # noqa: BLE001 - its traceback says why, as without this start
        traceback.print_exc()
        return EXIT_TRANSIENT
    return 0


def guard_sglang(key: str) -> None:
    """Have sglang's server ask for the key at every path, and send it when it warms up.

    Its parser is where it can be taken in: what is imported before would come too early for it.
    """
    parse = argparse.ArgumentParser.parse_args

    @functools.wraps(parse)
    def parsed(
        self: argparse.ArgumentParser,
        args: Sequence[str] | None = None,
        namespace: Any = None,  # noqa: ANN401 - argparse's own signature
    ) -> Any:  # noqa: ANN401
        found = parse(self, args, namespace)
        if hasattr(found, "api_key"):
            found.api_key = Hidden(key)
            # Its own middleware leaves what begins with /health or /metrics open.
            auth: Any = import_module("sglang.srt.utils.auth")
            auth.add_api_key_middleware = _add_gate
        return found

    argparse.ArgumentParser.parse_args = parsed  # type: ignore[assignment]


def _add_gate(app: Any, **_: object) -> None:  # noqa: ANN401 - an application of FastAPI
    app.add_middleware(Gate)
