"""A larger machine, a looser limit or fewer users never make the answer of `check` worse.

A machine whose GPUs hold all weights may hold fewer requests than a smaller one whose memory holds
them: those are not compared, for each of its requests is many times as fast.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kimi_prov.cli import cli

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

USERS = st.integers(1, 3000)
LIMITS = st.integers(15, 400)
CARDS = ("H100 SXM", "H200 SXM", "B200 SXM")
# Each has all of the one before it, and more.
MACHINES = {
    **{
        card: [
            f'gpus: {{model: "{card}", count: {count}}}, memory: {{total_gb: {memory}}}'
            for count, memory in ((1, 768), (2, 1152), (4, 1536), (8, 2304))
        ]
        for card in CARDS
    },
    "none": [f"memory: {{dimms: 24, dimm_gb: {size}, speed_mt_s: 4800}}" for size in (32, 64, 96)],
}
given_some = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LADDER = st.sampled_from(
    [(kind, low) for kind, rows in MACHINES.items() for low in range(len(rows) - 1)]
)


class Answer:
    """What `check` answers: whether it can serve, and machines that carry the load."""

    def __init__(self, folder: Path, machine: str, *words: object) -> None:
        sheet = folder / "sheet.yml"
        sheet.write_text(
            "{schema: kimi-prov/spec/v1, cpu: {model: EPYC 9654, sockets: 2}, "
            f"disks: [{{kind: nvme, size_gb: 7680, count: 2}}], {machine}}}\n"
        )
        command = ["check", str(sheet), "--format", "json", *map(str, words)]
        done = CliRunner().invoke(cli, command, standalone_mode=False)
        assert done.exception is None, done.exception
        document: dict[str, Any] = json.loads(done.stdout)
        (target,) = document["targets"]
        self.serves = done.return_value == 0
        self.is_hybrid = target["plan"]["hybrid"] is not None
        sizing = target["sizing"] if self.serves else None
        needed = sizing and sizing["machines"]["expected"]
        self.machines = math.inf if needed is None else needed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@given_some
@given(rung=LADDER, users=USERS)
def test_a_larger_machine_is_never_worse(folder: Path, rung: tuple[str, int], users: int) -> None:
    kind, low = rung
    small, large = (Answer(folder, MACHINES[kind][at], "--users", users) for at in (low, low + 1))
    assert large.serves >= small.serves
    if small.is_hybrid == large.is_hybrid:
        assert large.machines <= small.machines


@given_some
@given(rung=LADDER, users=st.tuples(USERS, USERS))
def test_fewer_users_are_never_worse(
    folder: Path, rung: tuple[str, int], users: tuple[int, int]
) -> None:
    machine = MACHINES[rung[0]][rung[1] + 1]
    few, many = (Answer(folder, machine, "--users", count) for count in sorted(users))
    assert few.serves == many.serves
    assert few.machines <= many.machines


@given_some
@given(rung=LADDER, users=USERS, limits=st.tuples(LIMITS, LIMITS))
@pytest.mark.parametrize(("option", "unit"), [("--tpot-ms", 1), ("--ttft-s", 0.1)])
def test_a_looser_limit_is_never_worse(
    folder: Path,
    option: str,
    unit: float,
    rung: tuple[str, int],
    users: int,
    limits: tuple[int, int],
) -> None:
    machine = MACHINES[rung[0]][rung[1] + 1]
    tight, loose = (
        Answer(folder, machine, "--users", users, option, limit * unit) for limit in sorted(limits)
    )
    assert loose.machines <= tight.machines
