"""What the jobs' program asks of numactl, SLURM, a server and its other jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster_stand_in import Cluster
from test_cluster_serve import cluster, plan
from waiting import until

from kimi_prov.on_host.cluster import slurm
from kimi_prov.on_host.engine import placement

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    import pytest


def test_memory_is_placed_only_on_nodes_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "numactl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    notes: list[str] = []
    assert placement.build_numactl(["--interleave=all"], [1], notes) == [
        str(program),
        "--interleave=all",
    ]
    assert notes == []
    assert placement.build_numactl(["--membind=1"], [1], notes) == []
    program.unlink()
    assert placement.build_numactl(["--interleave=all"], [], notes) == []
    assert [len(notes), "numactl is not on this node" in notes[1]] == [2, True]


def test_two_jobs_fetch_the_weights_once(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"abc" * 2_000_000)
    made = plan()
    made["weights"] |= {"source": f"file://{source}"}
    at = Cluster(tmp_path / "cluster", made)
    at.jobs("1", "2")
    jobs = [at.start("weights", SLURM_JOB_ID=number) for number in ("1", "2")]
    logs = [job.communicate(timeout=90)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], logs
    assert sum("1 to fetch" in log for log in logs) == 1
    assert (at.root / "models/m/r/model.safetensors").stat().st_size == 6_000_000
    assert "already verified" in at.run("weights").stdout


def test_weights_of_the_network_are_not_asked_for_offline(tmp_path: Path) -> None:
    made = plan()
    made["weights"] |= {"source": "https://weights.example.com/m"}
    done = Cluster(tmp_path, made).run("weights", KIMI_OFFLINE="1")
    assert done.returncode == 2
    assert "./prepare-login.sh" in done.stderr


def test_slurm_tells_whether_a_job_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Cluster(tmp_path, plan())
    for name, value in at.environment.items():
        monkeypatch.setenv(name, value)
    at.jobs("77")
    assert slurm.is_living("77") is True
    assert slurm.is_living("78") is False
    (at.programs / "squeue").write_text("#!/bin/sh\necho Unable to contact >&2\nexit 1\n")
    assert slurm.is_living("78") is None
    monkeypatch.setenv("PATH", "/nonexistent")
    assert slurm.is_living("78") is None


def test_acceptance_asks_the_endpoint_and_fails_where_a_check_does(tmp_path: Path) -> None:
    """The stand-in has no gate: refusals and tools fail, the chat does not.

    The endpoint of a job that SLURM does not know is nobody's.
    """
    at = cluster(tmp_path)
    words = ("serve", "--module", "vllm.entrypoints.stand_in", "--", "--model", "/m")
    job: subprocess.Popen[str] = at.start(*words)
    try:
        assert until(lambda: at.endpoint().get("state") == "ready")
        at.jobs()
        assert "no server answers" in at.run("accept", "newest").stderr
        at.jobs(at.job)
        done = at.run("accept", "newest")
        assert done.returncode == 1, done.stderr
        rows = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()[1:-1]}
        assert (rows["tls"], rows["chat"], rows["no-key-refused"]) == ("ok", "ok", "fail")
        told = at.run("accept", "newest", "--suite", "full").stdout.splitlines()
        (form,) = [line for line in told if line.split()[:2] == ["fail", "structured-output"]]
        assert form.endswith(", came hello"), told
        assert [line for line in told if line.startswith("skip  facts")]
        # What has to be asked on the machine is not run, with the reason, and has not passed.
        (tokens,) = [line for line in told if line.startswith("skip  special-tokens")]
        assert "a job is tested only through its port" in tokens
        count = {
            word: sum(line.startswith(word) for line in told) for word in ("ok", "fail", "skip")
        }
        of, failed = count["ok"] + count["fail"], count["fail"]
        assert told[-1].startswith(f"of {of} checks that were run {failed} failed: ")
        assert told[-1].endswith(f"; {count['skip']} not run")
    finally:
        job.terminate()
        job.communicate(timeout=60)
