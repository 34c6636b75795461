from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import smoke_test
from kimi_prov.on_host.system import units

if TYPE_CHECKING:
    from pathlib import Path


def unit(state="active", restarts=0, load="loaded", queued=False):
    return {"load_state": load, "state": state, "restarts": restarts, "queued": queued}


@pytest.mark.parametrize(
    ("states", "counts", "broken"),
    [
        ({"e": unit("activating")}, {}, ""),
        ({"e": unit("failed")}, {}, "e"),
        ({"e": unit("failed", queued=True)}, {}, ""),
        ({"e": unit("activating", 1)}, {"e": 0}, "e"),
        ({"e": unit("activating", 4)}, {"e": 4}, ""),
        ({"e": unit(), "p": unit(load="not-found")}, {}, "p"),
    ],
)
def test_a_unit_that_failed_or_started_again_ends_the_waiting(states, counts, broken):
    assert smoke_test.find_failure(states, counts) == broken


@pytest.mark.parametrize("sub_state", ["auto-restart", "stop-sigterm"])
def test_an_engine_that_was_killed_a_moment_ago_is_awaited_once(sub_state):
    """systemd counts a restart when the pause before it is over."""
    killed = {"e": {**unit("activating", 2), "sub_state": sub_state}}
    counts = smoke_test.count_restarts(killed)
    assert smoke_test.find_failure(killed, counts) == ""
    started = {"e": {**unit("activating", 3), "sub_state": "start-post"}}
    assert smoke_test.find_failure(started, counts) == ""
    again = {"e": {**unit("activating", 4), "sub_state": "start-post"}}
    assert smoke_test.find_failure(again, counts) == "e"
    running = {"e": {**unit("active", 2), "sub_state": "running"}}
    assert smoke_test.count_restarts(running) == {"e": 2}


def test_what_an_engine_logs_below_an_error_is_no_cause():
    warning = (
        "(EngineCore pid=7) WARNING 11-29 20:00:00 [cpu_worker.py:115] libiomp is not found in "
        "LD_PRELOAD. For best performance, please follow the section `set LD_PRELOAD`"
    )
    error = "OSError: [Errno 28] No space left on device"
    assert units.find_cause([error, warning]) == error
    found = units.find_cause([warning, "kimi-serve@0.service: Main process exited, code=killed"])
    assert "LD_PRELOAD" not in found


def test_the_cause_is_the_last_telling_line_and_not_the_noise_after_it():
    lines = [
        "INFO loading",
        "Traceback (most recent call last):",
        "ValueError: No available memory for the cache blocks. Try increasing it",
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "kimi-serve@0.service: Main process exited, code=exited, status=1/FAILURE",
    ]
    found = units.find_cause(lines)
    assert found.startswith("ValueError: No available memory")


def test_a_share_of_the_gpu_that_is_not_free_names_the_figure_to_change():
    lines = [
        (
            "(Worker pid=8) ERROR 11-22 12:20:59 [multiproc_executor.py:1] ValueError: Free memory "
            "on device cuda:0 (78.61/79.18 GiB) on startup is less than desired GPU memory "
            "utilization (0.999, 79.1 GiB). Decrease GPU memory utilization or reduce GPU memory "
            "used by other processes."
        ),
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    found = units.find_cause(lines)
    assert found.startswith("ValueError: Free memory on device cuda:0 (78.61/79.18 GiB)")


def test_the_worker_s_error_is_the_cause_and_not_what_three_processes_make_of_it():
    # The server's lines were seen on GPUs; the worker's and the core's are by vLLM's sources.
    at = "(EngineCore pid=7) ERROR 11-22 12:21:00 [core.py:1233]"
    lines = [
        "(Worker_TP0 pid=8) ERROR 11-22 12:20:59 [multiproc_executor.py:1]     raise ValueError(",
        (
            "(Worker_TP0 pid=8) ERROR 11-22 12:20:59 [multiproc_executor.py:1] ValueError: Free "
            "memory on device cuda:0 (78.61/79.18 GiB) on startup is less than desired GPU memory "
            "utilization (0.999, 79.1 GiB)."
        ),
        f"{at}     raise e from None",
        (
            f"{at} Exception: WorkerProc initialization failed due to an exception in a background "
            "process. See stack trace for root cause."
        ),
        (
            "(EngineCore pid=7) Exception: WorkerProc initialization failed due to an exception in "
            "a background process. See stack trace for root cause."
        ),
        "(APIServer pid=5)     raise RuntimeError(",
        (
            "(APIServer pid=5) RuntimeError: Engine core initialization failed. See root cause "
            "above. Failed core proc(s): {}"
        ),
        "kimi-serve@0.service: Main process exited, code=exited, status=1/FAILURE",
    ]
    found = units.find_cause(lines)
    assert found.startswith("ValueError: Free memory on device cuda:0 (78.61/79.18 GiB)")


def test_a_tool_that_the_unit_does_without_is_not_the_cause():
    lines = [
        "(Worker pid=8) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 40 GiB",
        "kimi-serve@0.service: Scheduled restart job, restart counter is at 1.",
        (
            "kimi-serve@0.service: Unable to locate executable '/usr/bin/nvidia-modprobe': "
            "No such file or directory"
        ),
        "not ready yet: the engine is loading",
    ]
    assert "CUDA out of memory" in units.find_cause(lines)


def test_the_engines_own_marks_before_a_line_are_left_out():
    line = "(EngineCore pid=77) ERROR 11-21 03:04:19 [core.py:1] ValueError: too long"
    assert units.find_cause([line, "INFO 11-21 03:04:20 [x.py:2] bye"]) == "ValueError: too long"
    assert units.strip_log_prefix("(Worker pid=9) loading shards: 50%") == "loading shards: 50%"


def test_what_pydantic_says_on_the_next_line_belongs_to_the_cause():
    lines = ["pydantic_core.ValidationError: 1 validation error for ModelConfig", "no config.json"]
    assert units.find_cause(lines).endswith("ModelConfig: no config.json")


def test_without_a_telling_line_the_last_one_is_shown():
    assert units.find_cause(["a", "b"]) == "b"
    assert units.find_cause([]) == "nothing in the journal"


GROUP = {"digest": "d", "name": "pair", "rank": 1, "members": [{"host": "a"}, {"host": "b"}]}
OF_RANK = {"group": GROUP, "instances": [{"index": 0, "unit": "kimi-rank.service"}]}


def supervised(root: Path, **more: object) -> Paths:
    """A root where the supervisor of this host, this process, has left its state."""
    paths = Paths(root)
    paths.group_run.mkdir(parents=True, exist_ok=True)
    state = {"phase": "serving", "said": "the model is served by a", "pid": os.getpid(), **more}
    (paths.group_run / "state.json").write_text(json.dumps(state))
    return paths


def test_a_rank_is_ready_when_the_head_of_its_group_serves(tmp_path: Path):
    paths = supervised(tmp_path)
    assert smoke_test.explain_group_wait(paths, OF_RANK, unit()) == ""
    said = "the model is served by a"
    assert smoke_test.explain_group_wait(paths, OF_RANK, unit("activating")) == said
    supervised(tmp_path, phase="waiting", said="waiting for a\x1b[2J, the head")
    assert (
        smoke_test.explain_group_wait(paths, OF_RANK, unit()) == "waiting for a\\x1b[2J, the head"
    )
    # It was killed, and its unit waits to start it again.
    supervised(tmp_path, pid=2**31)
    said = "kimi-rank.service is activating; a serves for it"
    assert smoke_test.explain_group_wait(paths, OF_RANK, unit("activating")) == said
    supervised(tmp_path, pid=2**31, phase="waiting", said="a, the head, left")
    assert smoke_test.explain_group_wait(paths, OF_RANK, unit("activating")) == "a, the head, left"


def test_a_round_that_failed_with_all_hosts_there_is_told_with_its_reason(tmp_path: Path):
    paths = supervised(tmp_path)
    assert smoke_test.find_round_failure(paths, OF_RANK) is None
    rounds = {"failed": 1, "why": "the engine on b ended with status 3"}
    # Of the plan that was gone back from: it says nothing of the one in place.
    (paths.group_run / "rounds.json").write_text(json.dumps({**rounds, "digest": "of another"}))
    assert smoke_test.find_round_failure(paths, OF_RANK) is None
    told = json.dumps({**rounds, "digest": GROUP["digest"]})
    (paths.group_run / "rounds.json").write_text(told)
    error = smoke_test.find_round_failure(paths, OF_RANK)
    assert error is not None
    assert error.message == "group pair: the engine on b ended with status 3"
    assert "journalctl -u kimi-rank.service" in str(error.fix)
    assert smoke_test.find_round_failure(paths, {"group": None}) is None
