"""`pod SUBCOMMAND ...`: what the containers of a rendered Kubernetes folder run."""

from __future__ import annotations

import signal
import sys
from importlib import import_module

from kimi_prov.contract.errors import HostError

# Each module has `main(argv) -> exit status`.
COMMANDS = {
    "fetch": "kimi_prov.on_host.pod.fetch",
    "serve": "kimi_prov.on_host.pod.serve",
    "engine": "kimi_prov.on_host.engine.api_gate",
    "proxy": "kimi_prov.on_host.pod.proxy",
    "ready": "kimi_prov.on_host.pod.ready",
    "accept": "kimi_prov.on_host.pod.accept",
}


def main(argv: list[str]) -> int:
    """Run the subcommand; an error is one sentence in the container's log."""
    name = argv[0] if argv else ""
    if name not in COMMANDS:
        raise HostError(f"pod {name!r}: there are {', '.join(COMMANDS)}")
    # The kernel sends the first process of a container only signals that it handles.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        status: int = import_module(COMMANDS[name]).main(argv[1:])
    except (HostError, OSError) as error:
        told = HostError.from_system(error) if isinstance(error, OSError) else error
        print(f"{name}: {told.line}", file=sys.stderr, flush=True)
        return told.exit_status
    return status


def _exit_on_signal(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
