"""Weights that outlive the engine, with an installed engine: `resident.py` inside a host.

In order: each test goes on from what the one before has left.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import engine_unit as unit
import gpu_report
import pytest
import resident
from test_loaders_served import carry, select_flags

if TYPE_CHECKING:
    from conftest import Clock
    from gpu_report import Report
    from machines import Host

pytestmark = pytest.mark.gpu

_PLACE = "/opt/kimi-loaders"
_OUTPUT = "/var/tmp/kimi-resident"
# Of the time that is left: the host is destroyed after it.
_KEPT_S = 60.0


def test_apply_serves_before_weights_are_held(host: Host, report: Report) -> None:
    """`kimi-prov apply` brings the host to a model whose experts hold random values."""
    done = host.apply()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    plan = unit.planned(host)
    engine = f"{plan['engine']['name']} {plan['engine']['version']}"
    report.figure(engine=engine, argv=plan["instances"][0]["argv"][1:])


def test_mapped_weights_are_those_of_an_ordinary_load(
    host: Host, clock: Clock, report: Report
) -> None:
    """Mapped engines hold and answer the same, by one rank and more, and outlive kill -9."""
    if "argv" not in report.figures:
        pytest.fail("apply has not served, so there is no engine to start")
    program = unit.planned(host)["instances"][0]["argv"][0]
    carry(host, "resident.py")
    host.ssh(f"systemctl stop {unit.UNIT}")
    minutes = max(1.0, (clock.left_s - _KEPT_S) / 60)
    python = program.rpartition("/")[0] + "/python"
    argv = report.figures["argv"]
    flags = " ".join(select_flags(argv, *resident.OWN_FLAGS))
    ranks = sorted({1, len(gpu_report.cards())}, reverse=True)
    host.ssh(
        f'eval "export $(systemctl show {unit.UNIT} -p Environment --value)"; '
        f"{python} {_PLACE}/tests/gpu/resident.py --output {_OUTPUT} --minutes {minutes:.1f} "
        f"--model {argv[argv.index('--model') + 1]} --python {python} "
        f"{' '.join(f'--ranks {one}' for one in ranks)} --flags='{flags}'",
        check=False,
        timeout=60 * minutes + 120,
    )
    document = json.loads(host.ssh(f"cat {_OUTPUT}/loaders.json"))
    report.figure(resident=document)
    rows = {(row["loader"], row["source"]): row["note"] for row in document["rows"]}
    for one in ranks:
        assert "SHA-256 of an ordinary load" in rows["held, mapped", f"{one} ranks"]
    assert "same answer" in rows["served, mapped", f"{ranks[0]} ranks"]


def test_destroy_after_weights_were_held_frees_the_gpus(host: Host, report: Report) -> None:
    """`kimi-prov destroy` leaves no unit, file or user, and no memory of a card in use."""
    host.ssh(f"rm -rf {_PLACE} {_OUTPUT}", check=False)
    report.figure(destroy_s=unit.destroyed(host), memory_after_mib=unit.memory_used())
