"""The same input makes the same plan in every process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_same_input_gives_the_same_bytes() -> None:
    """Also where sets are ordered otherwise: each process has a seed of its own."""
    program = (
        "import json, plan_inputs\n"
        "settings = {'model': 'kimi-k2.5', 'weights_source': None}\n"
        "print(json.dumps([plan_inputs.plan(), "
        "plan_inputs.plan(plan_inputs.hybrid_facts(), **settings)]))"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2] / "helpers")},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert len(first) > 1000
    assert first == second
