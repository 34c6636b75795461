"""Figures of the product on this machine: commands, time to serve, no-op apply, staging, unit.

    python tests/bench/run.py [--hosts 4] [--runs 3] [--pairs 50] [--output FILE]

Brings up lab hosts of its own and takes them away again. Prints one JSON object; seconds are wall
clock, medians where there are several runs. The hosts are containers on this machine's cores and
the model is tiny: time to serve here says what the tool costs, not what 600 GB do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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


def applied(lab: Lab, limit: str) -> dict[str, Any]:
    """Seconds of one apply and of its phases, the slowest host's where there are several."""
    began = time.monotonic()
    done = kimi_prov("apply", lab.inventory, "--limit", limit, timeout=1800)
    seconds = time.monotonic() - began
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
        "load": round(os.getloadavg()[0], 1),
        "phases": phases,
        "changed": sum(host["changed"] for host in changed.values()),
    }


def no_op(lab: Lab, limit: str, runs: int) -> dict[str, Any]:
    """Median seconds of an apply that finds everything done."""
    rows = [applied(lab, limit) for _ in range(runs)]
    if any(row["changed"] for row in rows):
        raise SystemExit(f"an apply on a converged host changed something: {rows}")
    middle = sorted(rows, key=lambda row: row["seconds"])[len(rows) // 2]
    return {
        "median_s": statistics.median(row["seconds"] for row in rows),
        "each_s": [row["seconds"] for row in rows],
        "phases": middle["phases"],
    }


def staging() -> Any:
    """Our pass against cp and sha256sum, in turns."""
    script = Path(__file__).with_name("staging.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> int:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=50, help="turns of unit and engine by hand")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    names = [f"bench{number + 1}" for number in range(options.hosts)]
    one, many = names[0], f"{options.hosts}_hosts"
    figures: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
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
            keep("time_to_serve_first_host", applied(lab, one))
            keep("no_op_one_host", no_op(lab, one, options.runs))
            keep("unit_cost", unit_cost.measured(lab.hosts[one], options.pairs))
            if options.hosts > 1:
                keep(f"time_to_serve_{many}", applied(lab, "all"))
                keep(f"no_op_{many}", no_op(lab, "all", options.runs))
        finally:
            lab.down()
    keep("staging", staging())
    text = json.dumps(figures, indent=1) + "\n"
    sys.stdout.write(text)
    if options.output:
        options.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
