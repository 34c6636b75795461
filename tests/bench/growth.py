"""What a site's commands cost the control machine as its hosts become many.

    python tests/bench/growth.py [--hosts 1 4 8 32] [--runs 3] [--output FILE]

Lab hosts, on each a stand-in in the engine's place: `apply` has the roles of `TAGS` alone, so that
what grows is the tool's own work and not downloads. Prints one JSON object. `control_cpu_s` is what
the command and its processes spent, user and system; `control_memory_mib` the most that they had
at once, pages that processes share counted once (PSS). The hosts are containers of this machine
and share its cores with the control side: wall clock is more here than with machines of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

import psutil
from host_stand_ins import stand_ins
from machines import KIMI_PROV, descendants, make_lab

if TYPE_CHECKING:
    from collections.abc import Sequence

    from machines import Lab

NETWORK = "10.93.41"
TAGS = ("--tags", "host_base,host_tuning,proxy,firewall")
# Reading the memory map of every process costs what it measures: not more often.
LOOK_S = 1.0
OK, NOT_ALL, NOT_FIT = 0, 1, 3


def memory_mib(pid: int) -> float:
    """MiB that a process and all that came of it have, shared pages counted once."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        for process in descendants(pid):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                total += process.memory_full_info().pss
    return total / 2**20


@dataclass
class Cost:
    """What one command took."""

    code: int
    wall_s: float
    control_cpu_s: float
    control_memory_mib: float

    def told(self) -> dict[str, float]:
        return {
            "wall_s": round(self.wall_s, 1),
            "control_cpu_s": round(self.control_cpu_s, 1),
            "control_memory_mib": round(self.control_memory_mib),
        }


def cost(*argv: object, expected: Sequence[int] = (OK,)) -> Cost:
    """Run a command of the product to its end. Raises SystemExit for another exit code."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            [KIMI_PROV, *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process:
            most = [0.0]
            ended = threading.Event()

            def look() -> None:
                while not ended.wait(LOOK_S):
                    most[0] = max(most[0], memory_mib(process.pid))

            looking = threading.Thread(target=look)
            looking.start()
            code = process.wait()
            ended.set()
            looking.join()
        wall = time.monotonic() - began
        output.seek(0)
        if code not in expected:
            raise SystemExit(f"{argv}: exit code {code}\n{output.read()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(code, wall, spent, most[0])


def middle(*argv: object, runs: int, expected: Sequence[int] = (OK,)) -> dict[str, float]:
    """Tell the median of several runs, each figure for itself."""
    rows = [cost(*argv, expected=expected) for _ in range(runs)]
    return Cost(
        rows[0].code,
        statistics.median(row.wall_s for row in rows),
        statistics.median(row.control_cpu_s for row in rows),
        max(row.control_memory_mib for row in rows),
    ).told()


def measured(lab: Lab, runs: int) -> dict[str, Any]:
    """Tell what each command costs on the hosts of a lab that have had no `apply`."""
    names = list(lab.hosts)
    apply = ("apply", lab.inventory, *TAGS)
    found: dict[str, Any] = {"apply_from_scratch": cost(*apply).told()}
    stand_ins(lab, names)
    found["apply_no_op"] = middle(*apply, runs=runs)
    # Without an engine's unit no host is whole: 1 says so.
    found["status"] = middle("status", lab.inventory, runs=runs, expected=(OK, NOT_ALL))
    # A container on a machine that does other things may be told unfit.
    found["check"] = middle(
        "check", "--inventory", lab.inventory, runs=runs, expected=(OK, NOT_FIT)
    )
    return found


def one_slow(lab: Lab) -> dict[str, float]:
    """Tell what a no-op `apply` costs while the first host has a link of 256 kbit/s."""
    first = next(iter(lab.hosts.values()))
    first.ssh("tc qdisc replace dev eth0 root tbf rate 256kbit burst 16kb latency 400ms")
    try:
        return cost("apply", lab.inventory, *TAGS).told()
    finally:
        first.ssh("tc qdisc del dev eth0 root")


def one_down(lab: Lab) -> dict[str, float]:
    """Tell what `apply` costs while the first host has no power; the others are applied."""
    first = next(iter(lab.hosts.values()))
    first.ssh("systemctl poweroff --force --force", check=False)
    return cost("apply", lab.inventory, *TAGS, expected=(NOT_ALL, 4)).told()


def main() -> int:
    """Measure each number of hosts in a lab of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 4, 8, 32])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    # As where it is installed: without bytecode every start compiles all of Ansible.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    figures: dict[str, Any] = {"engine": "a stand-in that answers each chat with the same words"}
    for count in options.hosts:
        with tempfile.TemporaryDirectory() as folder:
            lab = make_lab(
                Path(folder) / "inv", NETWORK, [f"grow{number + 1}" for number in range(count)]
            )
            lab.up()
            try:
                found = measured(lab, options.runs)
                if count > 1:
                    found["apply_no_op_one_host_slow"] = one_slow(lab)
                    found["apply_no_op_one_host_down"] = one_down(lab)
            finally:
                lab.down()
        figures[f"{count}_hosts"] = found
        # What was measured is not lost with what comes after it.
        sys.stderr.write(f"{count} hosts: {json.dumps(found)}\n")
    text = json.dumps(figures, indent=1) + "\n"
    sys.stdout.write(text)
    if options.output:
        options.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
