"""What is done with an engine's unit follows from what runs, not from what was written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kimi_prov.on_host.engine import serve

ACTIVE = {"ActiveState": "active", "SubState": "running"}


@pytest.mark.parametrize(
    ("state", "running", "word"),
    [
        ({}, "", "start"),
        ({"ActiveState": "inactive", "SubState": "dead"}, "", "start"),
        ({"ActiveState": "failed", "SubState": "failed"}, "", "start"),
        (ACTIVE, "new", "leave"),
        (ACTIVE, "old", "restart"),
        (ACTIVE, "", "restart"),
        ({"ActiveState": "activating", "SubState": "start-post"}, "new", "leave"),
        ({"ActiveState": "activating", "SubState": "start-post"}, "old", "restart"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, "", "leave"),
        ({"ActiveState": "inactive", "SubState": "dead", "Job": "12"}, "", "leave"),
    ],
)
def test_verdict(state: dict[str, str], running: str, word: str) -> None:
    assert serve.verdict(state, running, "new") == word


def test_the_stamp_is_read_from_the_process_itself() -> None:
    environment = {**os.environ, serve.STAMP: "0123456789abcdef"}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs
        assert serve.stamp_of({"MainPID": str(process.pid)}) == "0123456789abcdef"
        control = {"MainPID": "0", "ControlPID": str(process.pid)}
        assert serve.stamp_of(control) == "0123456789abcdef"
        process.kill()
    assert serve.stamp_of({"MainPID": "0"}) == ""


def test_instances_are_known_by_their_drop_ins(tmp_path: Path) -> None:
    for name in ("kimi-serve@0.service.d", "kimi-serve@12.service.d", "kimi-serve@x.service.d"):
        (tmp_path / name).mkdir()
    assert serve.installed(tmp_path) == ["kimi-serve@0.service", "kimi-serve@12.service"]
