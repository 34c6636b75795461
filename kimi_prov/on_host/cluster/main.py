"""`cluster SUBCOMMAND ...`: the subcommands of a rendered folder's jobs, and those about them."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster import disk_space

# Each module has `main(argv) -> exit status`.
COMMANDS = {
    "environment": "kimi_prov.on_host.cluster.environment",
    "wheels": "kimi_prov.on_host.cluster.wheels",
    "weights": "kimi_prov.on_host.cluster.weights",
    "serve": "kimi_prov.on_host.cluster.serve",
    "rank": "kimi_prov.on_host.cluster.rank",
    "engine": "kimi_prov.on_host.engine.api_gate",
    "tune": "kimi_prov.on_host.cluster.tune",
    "bench": "kimi_prov.on_host.cluster.bench",
    "accept": "kimi_prov.on_host.cluster.accept",
}
# These answer with one JSON document, or an error in its place; the control side reads it.
ANSWERING = {
    "receive": "kimi_prov.on_host.cluster.receive",
    "submit": "kimi_prov.on_host.cluster.submit",
    "jobs": "kimi_prov.on_host.cluster.jobs",
    "cancel": "kimi_prov.on_host.cluster.cancel",
    "endpoint": "kimi_prov.on_host.cluster.address",
}


def main(argv: list[str]) -> int:
    """Run the subcommand. When SLURM ends a job, cleanup still runs for those who wait."""
    name = argv[0] if argv else ""
    if name in ANSWERING:
        answered: int = import_module(ANSWERING[name]).main(argv[1:])
        return answered
    if name not in COMMANDS:
        raise HostError(f"cluster {name!r}: there are {', '.join([*COMMANDS, *ANSWERING])}")
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        status: int = import_module(COMMANDS[name]).main(argv[1:])
    except (HostError, OSError) as error:
        root = os.environ.get("KIMI_ROOT", "")
        told = disk_space.from_system_error(error, root) if isinstance(error, OSError) else error
        # A person reads the log of a job: one sentence, and the fix.
        print(f"{name}: {told.line}", file=sys.stderr, flush=True)
        return told.exit_status
    return status


def _exit_on_signal(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
