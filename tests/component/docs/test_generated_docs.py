"""What is generated of the docs is current, and the same each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


def test_the_generated_pages_are_current() -> None:
    script = [sys.executable, str(DOCS / "generate.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run: make docs"


def test_the_picture_is_the_same_whatever_the_order_of_a_set() -> None:
    script = "import sys, pathlib; sys.path.insert(0, 'docs'); import diagram; "
    script += "print(diagram.packages(pathlib.Path('kimi_prov')))"
    drawn = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(drawn) == 1
