"""Why a start failed, found in a long journal and in the kernel's messages."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.on_host.acceptance import run as acceptance
from kimi_prov.on_host.endpoint import smoke_test
from kimi_prov.on_host.system import units

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[..., None]

ENGINE = "kimi-serve@0.service"
ENDED = f"{ENGINE}: Main process exited, code=exited, status=1/FAILURE"
SHARE = (
    "(Worker pid=8) ERROR 11-22 12:20:59 [multiproc_executor.py:1] ValueError: Free memory on "
    "device cuda:0 (78.61/79.18 GiB) on startup is less than desired GPU memory utilization "
    "(0.999, 79.1 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
    "processes."
)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A journalctl that has these lines of a unit, and these of the kernel."""
    tool = tmp_path / "journalctl"
    tool.write_text(
        f"#!/bin/sh\ncase \"$*\" in *--dmesg*) exec cat '{tmp_path}/kernel';; esac\n"
        "for word; do case $word in --lines=*) n=${word#--lines=};; esac; done\n"
        f"exec tail -n $n '{tmp_path}/journal'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(*lines: str, kernel: tuple[str, ...] = ()) -> None:
        (tmp_path / "journal").write_text("".join(f"{line}\n" for line in lines))
        rows = ({"__CURSOR": "c", "__REALTIME_TIMESTAMP": "1", "MESSAGE": text} for text in kernel)
        (tmp_path / "kernel").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    return write


def test_the_cause_is_not_hidden_by_hundreds_of_killed_threads(
    journal: Callable[..., None],
) -> None:
    killed = [f"{ENGINE}: Killing process {n} (n/a) with signal SIGKILL." for n in range(900)]
    journal("ValueError: too long", "bye", *killed)
    assert units.read_journal(ENGINE, 2) == ["ValueError: too long", "bye"]


def fail(plan: Any = None) -> tuple[str, str]:
    error = smoke_test.make_error(plan or {}, ENGINE, units.read_journal(ENGINE))
    return error.message, str(error.fix)


def test_a_start_whose_lines_are_known_is_told_with_cause_and_fix(
    journal: Callable[..., None],
) -> None:
    journal("INFO loading", SHARE, "RuntimeError: Engine core initialization failed.", ENDED)
    message, fix = fail()
    line = SHARE.partition("] ")[2]
    assert message.startswith(f"{ENGINE} failed: ")
    assert message.endswith(f": {line}")
    assert message != f"{ENGINE} failed: {line}"
    assert "gpu-memory-utilization" in fix
    assert fix.endswith(f"(log: journalctl -u {ENGINE})")


def test_a_start_whose_lines_nobody_knows_is_told_with_the_line_that_names_an_error(
    journal: Callable[..., None],
) -> None:
    journal("INFO loading", "ValueError: the moon is too far away", "bye", ENDED)
    assert fail() == (
        f"{ENGINE} failed: ValueError: the moon is too far away",
        f"read its journal: journalctl -u {ENGINE}",
    )


def test_lines_of_an_earlier_start_do_not_explain_this_one(journal: Write) -> None:
    begins = f"Starting {ENGINE} - Kimi on GPUs 0 to 7..."
    journal(begins, SHARE, ENDED, begins, "ValueError: the moon is too far away", ENDED)
    assert fail()[0] == f"{ENGINE} failed: ValueError: the moon is too far away"
    # systemd has begun another start meanwhile, which says nothing yet.
    journal(begins, SHARE, ENDED, begins, "INFO loading")
    assert "gpu-memory-utilization" in fail()[1]


def test_an_engine_that_the_kernel_took_says_so(journal: Write) -> None:
    group = f"/system.slice/system-kimi\\x2dserve.slice/{ENGINE}"
    kernel = (
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=kimi,mems_allowed=0-1,"
            f"oom_memcg={group},task_memcg={group},task=VLLM::Worker,pid=4711,uid=998"
        ),
        (
            "Memory cgroup out of memory: Killed process 4711 (VLLM::Worker) total-vm:99887766kB, "
            "anon-rss:66554433kB, file-rss:1024kB, shmem-rss:0kB, UID:998 pgtables:140000kB "
            "oom_score_adj:0"
        ),
    )
    ended = (
        f"{ENGINE}: A process of this unit has been killed by the OOM killer.",
        f"{ENGINE}: Main process exited, code=killed, status=9/KILL",
        f"{ENGINE}: Failed with result 'oom-kill'.",
    )
    journal("INFO loading", *ended, kernel=kernel)
    message, fix = fail()
    assert message != f"{ENGINE} failed: {ended[-1]}"
    assert any(line in message for line in (*kernel, *ended))
    assert not fix.startswith("read its journal")


GROUP = {"digest": "d", "name": "pair", "rank": 1, "members": [{"host": "a"}, {"host": "b"}]}


def test_why_a_unit_of_a_group_failed_is_its_supervisor_s_last_word(
    journal: Callable[..., None],
) -> None:
    last = "group pair: a ended this round: the engine on a ended with status 1 (round 3 of 3)"
    waits = "group pair: waiting for a, the head, at 10.0.0.1: Connection refused"
    of_rank = {"group": GROUP, "instances": [{"index": 0, "unit": "kimi-rank.service"}]}
    journal(waits, last, ENDED)
    assert fail(of_rank)[0] == f"{ENGINE} failed: {last}"
    of_head = {**of_rank, "group": {**GROUP, "rank": 0}}
    journal(waits, "(Worker pid=8) ValueError: too long", last, ENDED)
    assert fail(of_head)[0] == f"{ENGINE} failed: {last} (ValueError: too long)"
    assert fail()[0] == f"{ENGINE} failed: ValueError: too long"
    journal(waits, SHARE, last, ENDED)
    message, fix = fail(of_head)
    assert message.startswith(f"{ENGINE} failed: {last} (")
    assert "gpu-memory-utilization" in fix


def test_a_check_without_an_answer_names_why_the_engine_gave_none(journal: Write) -> None:
    rows: list[Any] = [
        {"name": "a", "status": "fail", "detail": "no answer", "observed": "refused"},
        {"name": "b", "status": "fail", "detail": "wrong", "observed": "4"},
        {"name": "c", "status": "ok", "detail": "right"},
    ]
    journal("INFO serving", SHARE, ENDED)
    acceptance.add_causes(rows, [ENGINE], 0.0)
    assert rows[0]["observed"].startswith(f"refused; {ENGINE}: ")
    assert "gpu-memory-utilization" in rows[0]["observed"]
    assert (rows[1]["observed"], "observed" in rows[2]) == ("4", False)
    journal("ValueError: the moon is too far away")
    before = rows[0]["observed"]
    acceptance.add_causes(rows, [ENGINE], 0.0)
    assert rows[0]["observed"] == before
