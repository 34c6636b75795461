"""`engine -m MODULE ARGUMENT...` starts an engine behind the key check, in the engine's own python.

With `--headless` among vLLM's arguments it starts a rank of a group: a rank opens no port for
requests, and needs no key check.

vLLM's own key protects only some of its paths, and sglang takes its key on the command line, which
every local user may read, and logs it. So neither gets the key that way: the key check reads it
from its file.

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
# vLLM imports it by this name.
GATE = f"{Gate.__module__}.{Gate.__qualname__}"


class Hidden(str):
    """A key that a server may send and compare, and that its log of settings does not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the text that a log shows."""
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

    Its server's module parses `--headless` and then serves all the same; `vllm serve` does not, but
    needs metadata of a package that the CPU build lacks. So this uses its parser and calls the same
    functions.
    """
    _prefer_engine_modules()
    # vLLM's own entry points do this before they parse.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    sys.argv = ["vllm", *arguments]
    serve: Any = import_module("vllm.entrypoints.cli.serve")
    given = serve.make_arg_parser(serve.FlexibleArgumentParser()).parse_args()
    serve.validate_parsed_serve_args(given)
    given.api_server_count = 0
    serve.run_headless(given)


def _prefer_engine_modules() -> None:
    """Prevent that the program's own packages hide a module of the engine."""
    sys.path.append(sys.path.pop(0))


def _report_error(run: Callable[[], object]) -> int:
    try:
        run()
    except Exception:  # noqa: BLE001 - its traceback says why, as without this start
        traceback.print_exc()
        return EXIT_TRANSIENT
    return 0


def guard_sglang(key: str, guard: type = Gate) -> None:
    """Make sglang's server require keys by a guard, and send this one when it warms up.

    The server is changed while its parser runs: an import before that would come too early.
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
            # sglang's own middleware leaves paths open that begin with /health or /metrics.
            auth: Any = import_module("sglang.srt.utils.auth")
            auth.add_api_key_middleware = functools.partial(_add_guard, guard)
        return found

    argparse.ArgumentParser.parse_args = parsed  # type: ignore[assignment]


def _add_guard(guard: type, app: Any, **_: object) -> None:  # noqa: ANN401 - a FastAPI application
    app.add_middleware(guard)
