"""`python3 kimi-target.pyz SUBCOMMAND ...`: the one door into the code on the managed machine."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import List, Optional

from kimi_prov.target.envelope import fail
from kimi_prov.target.errors import HostError

# Each module has `main(argv) -> exit status` and is imported only when it is asked for.
COMMANDS = {
    "probe": "kimi_prov.target.probe",
    "lock": "kimi_prov.target.lock",
    "engine-check": "kimi_prov.target.engine_check",
    "cuda-home": "kimi_prov.target.cuda_home",
    "kt-prove": "kimi_prov.target.kt_prove",
    "kt-quantise": "kimi_prov.target.kt_quantise",
    "convert": "kimi_prov.target.convert",
    "manifest": "kimi_prov.target.manifest",
    "ready": "kimi_prov.target.ready",
    "serve-ensure": "kimi_prov.target.serve",
    "fetch": "kimi_prov.target.fetch",
    "stage": "kimi_prov.target.stage",
    "follow": "kimi_prov.target.follow",
    "settled": "kimi_prov.target.settled",
    "proxy-ensure": "kimi_prov.target.proxy",
    "proxy-state": "kimi_prov.target.haproxy",
    "keys": "kimi_prov.target.keys",
    "firewall-ensure": "kimi_prov.target.firewall",
    "smoke-test": "kimi_prov.target.knock",
    "runtime": "kimi_prov.target.runtime",
    "status": "kimi_prov.target.status",
    "driver": "kimi_prov.target.driver",
    "nccl-plugins": "kimi_prov.target.interceptors",
    "nccl-proof": "kimi_prov.target.nccl_proof",
    "destroy": "kimi_prov.target.destroy",
    "bench": "kimi_prov.target.bench",
    "bench-engine": "kimi_prov.target.bench_engine",
}


def main(argv: Optional[List[str]] = None) -> int:
    """Run the subcommand named first; without one, describe this machine."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0].startswith("-"):
        arguments.insert(0, "probe")
    name = arguments.pop(0)
    if name not in COMMANDS:
        return fail(HostError(f"unknown subcommand {name!r}; there are: {', '.join(COMMANDS)}"))
    try:
        status: int = import_module(COMMANDS[name]).main(arguments)
    except HostError as error:
        return fail(error)
    except OSError as error:
        return fail(HostError.of_system(error))
    return status


if __name__ == "__main__":
    sys.exit(main())
