"""What commands cost that provision nothing: wall and processor seconds, best of several runs."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from machines import CHECKOUT, KIMI_PROV

if TYPE_CHECKING:
    from machines import Lab

SHEET = CHECKOUT / "inventories" / "specs" / "quote-8x-h200.yml"
RUNS = 3


def spent(*argv: object) -> dict[str, float]:
    """Seconds of one command: of the clock, and of the processor on this side."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, check=False)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in {0, 3}:
        raise SystemExit(done.stdout + done.stderr)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2)}


def best(*argv: object) -> dict[str, float]:
    """The quickest of several runs: what else the machine does only adds."""
    return min((spent(*argv) for _ in range(RUNS)), key=lambda row: row["wall_s"])


def measured(lab: Lab) -> dict[str, Any]:
    """Help, spec sheets, the probe, and the hosts of a lab."""
    with tempfile.TemporaryDirectory() as folder:
        sheets = []
        for number in range(200):
            sheets.append(Path(folder) / f"m{number}.yml")
            sheets[-1].write_text(SHEET.read_text())
        bundle = Path(folder) / "probe.pyz"
        spent(KIMI_PROV, "probe", "--bundle", bundle)
        return {
            "help": best(KIMI_PROV, "--help"),
            "check_one_sheet": best(KIMI_PROV, "check", sheets[0], "--format", "json"),
            "check_200_sheets": best(KIMI_PROV, "check", *sheets, "--format", "json"),
            "probe": best(sys.executable, "-I", bundle),
            f"check_{len(lab.hosts)}_hosts": best(
                KIMI_PROV, "check", "--inventory", lab.inventory, "--format", "json"
            ),
        }


def asked(lab: Lab, limit: str) -> dict[str, dict[str, float]]:
    """What the small questions to hosts that serve cost."""
    questions = {
        "status": ["status"],
        "key": ["key", "--list"],
        "usage": ["usage"],
        "logs": ["logs", "--lines", "20"],
        "connect": ["connect"],
    }
    return {
        name: best(KIMI_PROV, *words, lab.inventory, "--limit", limit)
        for name, words in questions.items()
    }
