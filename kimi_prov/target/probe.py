"""`probe`: the facts of this machine as JSON on standard output; nothing is changed.

It needs no root: what only root can see is null. With `--lock HOLDER` the apply lock is taken
first, and the answer stands beside the facts as `lock`; alone where another holds it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Dict, List

from kimi_prov.target import (
    lock,
    probe_cpu,
    probe_devices,
    probe_gpu,
    probe_kimi,
    probe_memory,
    probe_network,
    probe_software,
    probe_system,
    read_amd,
)
from kimi_prov.target.machine import Machine

SCHEMA = "kimi-prov/facts/v1"


def collect(machine: Machine) -> Dict[str, Any]:
    """Every fact of the machine. Sizes in bytes; null is unknown."""
    states = probe_kimi.units(machine)
    found = probe_software.Packages(machine)
    cards = probe_gpu.Nvidia(machine)
    nvidia = cards.gpus()
    amd = read_amd.gpus(machine)
    for number, gpu in enumerate(amd, start=len(nvidia)):
        gpu["index"] = number
    configured = probe_software.loader(machine)
    host = probe_system.host(machine)
    return {
        "schema": SCHEMA,
        "collected_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "origin": {"kind": "probe", "name": host["hostname"], "detail": None},
        "origins": {},
        "host": host,
        "python": probe_system.python(machine),
        "cpu": probe_cpu.cpu(machine),
        "numa": probe_cpu.numa(machine),
        "memory": probe_memory.memory(machine, probe_system.shm_bytes(machine)),
        "cgroup": probe_memory.cgroup(machine),
        "filesystems": probe_system.filesystems(machine),
        "disks": probe_devices.disks(machine),
        "nics": probe_devices.nics(machine),
        "gpus": nvidia + amd,
        "nvidia": cards.facts(nvidia, found, states),
        "amd": read_amd.amd(machine),
        "tunables": probe_system.tunables(machine),
        "network": probe_network.network(machine),
        "firewall": probe_network.firewall(machine, states),
        "packages": probe_software.packages(machine, found),
        "ld_conf": configured,
        "gib": probe_software.gib(machine, configured),
        "kimi": probe_kimi.kimi(machine, states),
        "measured": None,
        "price": None,
    }


def described(machine: Machine, *, timed: bool) -> Dict[str, Any]:
    """Collect the facts, and what was measured where it is asked for."""
    facts = collect(machine)
    if timed:
        from kimi_prov.target import measure  # noqa: PLC0415  (only who measures pays for it)

        measure.apply(facts, measure.measured(machine, facts))
    return facts


def main(argv: List[str]) -> int:
    """`probe [--output FILE] [--measure] [--lock HOLDER]`."""
    parser = argparse.ArgumentParser(prog="probe", description=__doc__)
    parser.add_argument("--output", metavar="FILE", help="write there instead of standard output")
    parser.add_argument(
        "--measure", action="store_true", help="time memory, disk and hashing too (10 s or more)"
    )
    parser.add_argument("--lock", metavar="HOLDER", type=json.loads, help="take the apply lock")
    options = parser.parse_args(argv)
    held: Dict[str, Any] = {"lock": lock.acquire(options.lock)} if options.lock else {}
    if held and not held["lock"]["held"]:
        print(json.dumps(held))
        return 0
    facts = described(Machine(), timed=options.measure)
    text = json.dumps({**facts, **held}, indent=1, sort_keys=True) + "\n"
    if options.output:
        with open(options.output, "w", encoding="utf-8") as stream:
            stream.write(text)
    else:
        sys.stdout.write(text)
    return 0
