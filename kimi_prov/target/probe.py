"""`probe`: the facts of this machine as JSON on standard output; nothing is changed.

It needs no root: what only root can see is null.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Dict, List

from kimi_prov.target import probe_cpu, probe_gpu, probe_kimi, probe_network, probe_system
from kimi_prov.target.machine import Machine

SCHEMA = "kimi-prov/facts/v1"


def collect(machine: Machine) -> Dict[str, Any]:
    """Every fact of the machine. Sizes in bytes; null is unknown."""
    states = probe_kimi.units(machine)
    return {
        "schema": SCHEMA,
        "collected_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": probe_system.host(machine),
        "python": probe_system.python(machine),
        "cpu": probe_cpu.cpu(machine),
        "numa": probe_cpu.numa(machine),
        "memory": probe_system.memory(machine),
        "filesystems": probe_system.filesystems(machine),
        "gpus": probe_gpu.gpus(machine),
        "nvidia": probe_gpu.nvidia(machine),
        "tunables": probe_system.tunables(machine),
        "network": probe_network.network(machine),
        "firewall": probe_network.firewall(machine, states),
        "packages": probe_kimi.packages(machine),
        "kimi": probe_kimi.kimi(machine, states),
    }


def main(argv: List[str]) -> int:
    """`probe [--output FILE]`."""
    parser = argparse.ArgumentParser(prog="probe", description=__doc__)
    parser.add_argument("--output", metavar="FILE", help="write there instead of standard output")
    options = parser.parse_args(argv)
    text = json.dumps(collect(Machine()), indent=1, sort_keys=True) + "\n"
    if options.output:
        with open(options.output, "w", encoding="utf-8") as stream:
            stream.write(text)
    else:
        sys.stdout.write(text)
    return 0
