"""`probe`: the facts of this machine as JSON on standard output; nothing is changed.

It needs no root: what only root can see is null. With `--lock HOLDER` the apply lock is taken
first, and its answer is beside the facts as `lock`; where another run holds the lock, there are no
facts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from kimi_prov.contract import node_kinds
from kimi_prov.on_host.probe import (
    amd_smi,
    clock,
    cpu,
    devices,
    installed,
    memory,
    network,
    security,
    software,
    system,
)
from kimi_prov.on_host.probe import gpu as probe_gpu
from kimi_prov.on_host.system import apply_lock
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts import Facts

SCHEMA: Final = "kimi-prov/facts/v1"


def collect(machine: Machine) -> Facts:
    """Return every fact of the machine. Sizes in bytes; null is unknown."""
    states = installed.read_units(machine)
    found = software.Packages(machine)
    cards = probe_gpu.Nvidia(machine)
    nvidia = cards.gpus()
    amd = amd_smi.list_gpus(machine)
    for number, gpu in enumerate(amd, start=len(nvidia)):
        gpu["index"] = number
    configured = software.read_loader(machine)
    host = system.describe_host(machine)
    facts: Facts = {
        "schema": SCHEMA,
        "collected_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "origin": {"kind": "probe", "name": host["hostname"], "detail": None},
        "origins": {},
        "clock": clock.describe_clock(machine),
        "host": host,
        "python": system.describe_python(machine),
        "cpu": cpu.describe_cpu(machine),
        "numa": cpu.describe_numa(machine),
        "memory": memory.describe_memory(machine, system.read_shm_bytes(machine)),
        "cgroup": {
            **memory.read_cgroup(machine),
            "hierarchy": system.find_cgroup_hierarchy(machine),
        },
        "filesystems": system.list_filesystems(machine),
        "disks": devices.list_disks(machine),
        "nics": devices.list_nics(machine),
        "gpus": nvidia + amd,
        "nvidia": cards.facts(nvidia, found, states, container=bool(host["container"])),
        "amd": amd_smi.describe_amd(machine),
        "tunables": system.describe_tunables(machine),
        "network": network.describe_network(machine, nvidia + amd),
        "firewall": network.describe_firewall(machine, states),
        "packages": software.describe_packages(machine, found),
        "security": security.describe_security(machine),
        "ld_conf": configured,
        "gib": software.describe_gib(machine, configured),
        "kimi": installed.describe_installation(machine, states),
        "measured": None,
        "price": None,
    }
    node_kinds.classify_memory(facts)
    return facts


def describe(machine: Machine, *, timed: bool) -> Facts:
    """Collect the facts, and measurements where requested."""
    facts = collect(machine)
    if timed:
        from kimi_prov.on_host.probe import measure  # noqa: PLC0415  (only who measures pays for it)

        measure.apply(facts, measure.measure(machine, facts))
    return facts


def main(argv: list[str]) -> int:
    """`probe [--output FILE] [--measure] [--lock HOLDER]`."""
    parser = argparse.ArgumentParser(prog="probe", description=__doc__)
    parser.add_argument("--output", metavar="FILE", help="write there instead of standard output")
    parser.add_argument(
        "--measure", action="store_true", help="time memory, disk, hashing and GPUs (10 s or more)"
    )
    parser.add_argument("--lock", metavar="HOLDER", type=json.loads, help="take the apply lock")
    options = parser.parse_args(argv)
    held: dict[str, Any] = {"lock": apply_lock.acquire(options.lock)} if options.lock else {}
    if held and not held["lock"]["held"]:
        print(json.dumps(held))
        return 0
    try:
        facts = describe(Machine(), timed=options.measure)
    except BaseException:
        if held:
            apply_lock.release(str(options.lock["run"]))
        raise
    text = json.dumps({**facts, **held}, indent=1, sort_keys=True) + "\n"
    if options.output:
        with open(options.output, "w", encoding="utf-8") as stream:
            stream.write(text)
    else:
        sys.stdout.write(text)
    return 0
