"""Figures of the product on this machine: commands, time to serve, no-op apply, staging, unit.

    python tests/bench/run.py [--hosts 1 4 8] [--runs 3] [--pairs 50] [--output FILE]

Brings up lab hosts of its own and takes them away again. Prints one JSON object; seconds are wall
clock, medians where there are several runs. The hosts are containers on this machine's cores and
the model is tiny: time to serve here says what the tool costs, not what 600 GB do. `control_cpu_s`
is what the command and its processes spent on the control side, user and system; the hosts' work is
not in it, nor the shared SSH connections', which outlive their tasks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

import commands
import unit_cost
from machines import Lab, kimi_prov, make_lab, newest_run

NETWORK = "10.93.40"


def _cpu_s() -> float:
    """User and system seconds of the children that have ended, theirs included."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def applied(lab: Lab, limit: str) -> dict[str, Any]:
    """Seconds of one apply and of its phases, the slowest host's where there are several."""
    began, spent = time.monotonic(), _cpu_s()
    done = kimi_prov("apply", lab.inventory, "--limit", limit, timeout=3600)
    seconds, spent = time.monotonic() - began, _cpu_s() - spent
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    newest = newest_run(lab.inventory)
    timings = json.loads((newest / "timings.json").read_text())
    phases: dict[str, float] = {}
    for row in timings["phases"]:
        phases[row["phase"]] = max(phases.get(row["phase"], 0.0), row["seconds"])
    changed = json.loads((newest / "result.json").read_text())["hosts"]
    return {
        "seconds": round(seconds, 1),
        "control_cpu_s": round(spent, 2),
        "load": round(os.getloadavg()[0], 1),
        "phases": phases,
        "changed": sum(host["changed"] for host in changed.values()),
    }


def no_op(lab: Lab, limit: str, runs: int) -> dict[str, Any]:
    """Median seconds, wall clock and control side's CPU, of an apply that finds everything done."""
    rows = [applied(lab, limit) for _ in range(runs)]
    if any(row["changed"] for row in rows):
        raise SystemExit(f"an apply on a converged host changed something: {rows}")
    middle = sorted(rows, key=lambda row: row["seconds"])[len(rows) // 2]
    return {
        "median_s": statistics.median(row["seconds"] for row in rows),
        "each_s": [row["seconds"] for row in rows],
        "control_cpu_s": statistics.median(row["control_cpu_s"] for row in rows),
        "load": [row["load"] for row in rows],
        "phases": middle["phases"],
    }


def growth(cpu_s: dict[int, float]) -> dict[str, float]:
    """CPU seconds of the control side that each further host adds, from one count to the next."""
    counts = sorted(cpu_s)
    return {
        f"{few}_to_{many}_hosts": round((cpu_s[many] - cpu_s[few]) / (many - few), 2)
        for few, many in itertools.pairwise(counts)
    }


def _processor() -> str:
    """The processor's name as the kernel tells it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "?")


def beside(name: str) -> Any:
    """What another of these scripts measures: `staging`, our pass against cp and sha256sum, say."""
    script = Path(__file__).with_name(f"{name}.py")
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> int:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 4, 8], help="how many at once")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=50, help="turns of unit and engine by hand")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    counts = sorted({1, *options.hosts})
    names = [f"bench{number + 1}" for number in range(counts[-1])]
    one = names[0]
    # As where it is installed: without bytecode every start compiles all of Ansible.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    figures: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "processor": _processor(),
            "kernel": platform.release(),
            "load_before": [round(load, 1) for load in os.getloadavg()],
        },
        "hosts_are": "systemd-nspawn containers that share the machine's cores",
    }

    def keep(name: str, found: Any) -> None:
        figures[name] = found
        # What was measured is not lost with what comes after it.
        sys.stderr.write(f"{name}: {json.dumps(found)}\n")

    with tempfile.TemporaryDirectory() as folder:
        lab = make_lab(Path(folder) / "inv", NETWORK, names)
        lab.up()
        try:
            keep("commands", commands.measured(lab))
            cpu_s: dict[int, float] = {}
            for count in counts:
                several = f"{count}_hosts" if count > 1 else "one_host"
                limit = ",".join(names[:count])
                keep(f"time_to_serve_{several}", applied(lab, limit))
                found = no_op(lab, limit, options.runs)
                cpu_s[count] = found["control_cpu_s"]
                keep(f"no_op_{several}", found)
                keep(f"questions_{several}", commands.asked(lab, limit))
                if count == 1:
                    keep("unit_cost", unit_cost.measured(lab.hosts[one], options.pairs))
            keep("no_op_control_cpu_s_for_each_further_host", growth(cpu_s))
        finally:
            lab.down()
    keep("staging", beside("staging"))
    keep("growth", beside("growth"))
    text = json.dumps(figures, indent=1) + "\n"
    sys.stdout.write(text)
    if options.output:
        options.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
