"""Parts of the jobs' program: counters of use, the gate, what a cgroup hides, weights."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster import disk_space, slurm
from kimi_prov.on_host.cluster.activity import Activity, Idle, read
from kimi_prov.on_host.engine import placement
from kimi_prov.on_host.engine.api_gate import API_KEY_FILE, JOB_KEY_FILE, ApiGate

if TYPE_CHECKING:
    from pathlib import Path

METRICS = """
# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="kimi"} 2.0
vllm:num_requests_running{engine="1",model_name="kimi"} 1.0
vllm:num_requests_waiting{engine="0",model_name="kimi"} 4.0
vllm:generation_tokens_total{engine="0",model_name="kimi"} 1.5e+03
vllm:prompt_tokens_total{engine="0",model_name="kimi"} 7.0
"""


def test_requests_and_tokens_of_all_engines_are_counted() -> None:
    assert read(METRICS) == Activity(7, 1507)
    assert read("") is None
    assert read("vllm:num_requests_running 0") is None


def test_use_is_told_by_requests_and_tokens_and_what_is_unknown_counts_as_use() -> None:
    idle = Idle(60, 0)
    assert not idle.note_activity(Activity(0, 5), 1)
    assert not idle.note_activity(Activity(0, 5), 60)
    assert idle.note_activity(Activity(0, 5), 61)
    assert not idle.note_activity(Activity(1, 5), 62)
    assert not idle.note_activity(Activity(0, 5), 121)
    assert not idle.note_activity(None, 122)
    assert not idle.note_activity(Activity(0, 5), 123)
    # A request that came and went between two looks.
    assert not idle.note_activity(Activity(0, 9), 183)
    assert not Idle(0, 0).note_activity(Activity(0, 0), 1e9)


def test_an_engine_that_makes_no_tokens_for_who_waits_is_still() -> None:
    idle = Idle(60, 0)
    idle.note_activity(Activity(1, 5), 10)
    idle.note_activity(Activity(1, 5), 400)
    assert idle.count_still_s(400) == 390
    idle.note_activity(Activity(1, 6), 401)
    assert idle.count_still_s(402) == 1


def test_a_request_of_the_jobs_own_is_nobodys_use() -> None:
    idle = Idle(60, 0)
    idle.note_activity(Activity(0, 5), 1)
    idle.note_own_request(Activity(0, 8), 3)
    assert idle.note_activity(Activity(0, 8), 61)
    idle = Idle(60, 0)
    idle.note_activity(Activity(0, 5), 1)
    idle.note_own_request(Activity(0, 9), 3)
    assert not idle.note_activity(Activity(0, 9), 61)


async def _through(path: str, key: str | None, method: str = "GET") -> int:
    """Ask the gate; 200 stands for what the engine would answer."""
    answers: list[dict[str, Any]] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    async def receive() -> dict[str, Any]:
        return {}

    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    scope = {"type": "http", "path": path, "method": method, "headers": headers}
    await ApiGate(app)(scope, receive, send)
    return int(answers[0]["status"])


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/health", None, 200),
        ("/v1/models", None, 401),
        ("/v1/models", "wrong", 401),
        ("/v1/models", "sk-api", 200),
        ("/metrics", "sk-api", 404),
        ("/v1/../metrics", "sk-api", 404),
        ("/metrics", None, 401),
        ("/metrics", "job", 200),
        ("/v1/models", "job", 200),
    ],
)
def test_the_gate_knows_two_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, key: str | None, status: int
) -> None:
    for name, text in ((API_KEY_FILE, "sk-api\n"), (JOB_KEY_FILE, "job\n")):
        (tmp_path / name).write_text(text)
        monkeypatch.setenv(name, str(tmp_path / name))
    assert asyncio.run(_through(path, key)) == status


def test_a_gate_without_a_key_does_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").write_text("\n")
    for name in (API_KEY_FILE, JOB_KEY_FILE):
        monkeypatch.setenv(name, str(tmp_path / "empty"))
    with pytest.raises(HostError, match="there is no key"):
        asyncio.run(_through("/v1/models", ""))


def test_workers_are_not_bound_to_nodes_that_the_cgroup_hides() -> None:
    notes: list[str] = []
    words = ["--model", "m", "--numa-bind", "--numa-bind-nodes", "0", "1", "--dtype", "bfloat16"]
    assert placement.remove_hidden_binding(words, [1], notes) == [
        "--model",
        "m",
        "--dtype",
        "bfloat16",
    ]
    assert "hides NUMA nodes 1" in notes[0]
    assert placement.remove_hidden_binding(words, [], notes) == words
    assert placement.remove_hidden_binding(["--model", "m"], [1], []) == ["--model", "m"]


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("#SBATCH --time=00:30:00", 1800),
        ("#SBATCH --time 5:30", 330),
        ("#SBATCH -t90", 5400),
        ("#SBATCH -t 1-12", 36 * 3600),
        ("#SBATCH --time=1\n#SBATCH --time=2-01:00:30", 49 * 3600 + 30),
        ("#SBATCH --time=UNLIMITED", float("inf")),
        ("#SBATCH --time=soon", None),
        ("# --time=00:30:00", 0),
    ],
)
def test_a_walltime_is_read_as_sbatch_reads_it(line: str, seconds: float | None) -> None:
    assert slurm.read_walltime_s(f"#!/bin/bash\n{line}\n") == seconds


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_file_system_is_told_with_the_folder_and_what_helps(number: int) -> None:
    told = disk_space.from_system_error(OSError(number, os.strerror(number)), "/project/kimi").line
    assert told == f"/project/kimi: {os.strerror(number)}; {disk_space.FIX}"


def test_what_is_no_want_of_room_is_not_called_so(tmp_path: Path) -> None:
    told = disk_space.from_system_error(
        PermissionError(errno.EACCES, "Permission denied", "/a"), "/b"
    ).line
    assert told == "/a: Permission denied"
    assert disk_space.explain_full(str(tmp_path)) is None
    assert disk_space.explain_full(str(tmp_path / "absent")) is None
    assert list(tmp_path.iterdir()) == []
