"""The server's job in real processes: SLURM's commands and the engine are stand-ins."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import closed_form
import psutil
import pytest
from cluster_stand_in import MODULE, Cluster
from waiting import HANGS_S, until

from kimi_prov.on_host.endpoint import api_client, tls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., subprocess.Popen[str]]

ROOT = Path(__file__).resolve().parents[4]
ENGINE_ARGS = ("--model", "/m", "--max-num-seqs", "4", "--numa-bind")
BODY = {"model": "kimi", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


def plan(hosts: int = 1) -> dict[str, Any]:
    return {
        "engine": {
            "env_dir": "/srv/kimi/engines/vllm",
            "python_version": "3.11",
            "locks": ["vllm.txt"],
            "version": "0.19.1",
        },
        "model": {
            "served_names": ["kimi"],
            "serve_dir": "/srv/kimi/models/m/r",
            "random_weights": True,
        },
        "weights": {
            "source": "file:///nowhere",
            "dir": "/srv/kimi/models/m/r",
            "manifest": None,
            "bytes": 3,
            "workers": 1,
            "hf_endpoint": None,
            "draft": None,
            "converted": None,
        },
        "installation": {"hub_client": None, "metadata": None, "cuda_home": None},
        "instances": [{"numa_nodes": [0], "argv": [], "gpus": []}],
        "parallel": {"hosts": hosts},
        "proxy": {"port": 8000, "request_body_max_bytes": 1 << 20},
    }


def cluster(base: Path, hosts: int = 1, **settings: str) -> Cluster:
    """A cluster whose engine is installed and whose weights are verified."""
    source = base / "source"
    source.mkdir(parents=True)
    (source / "config.json").write_text("{}\n")
    digest = hashlib.sha256(b"{}\n").hexdigest()
    rows = {"files": [{"path": "config.json", "size": 3, "sha256": digest}]}
    made = plan(hosts)
    made["weights"] |= {"source": f"file://{source}", "manifest": rows}
    found = Cluster(base / "cluster", made, settings, nodes=",".join(["localhost"] * hosts))
    found.install()
    done = found.run("weights")
    assert done.returncode == 0, done.stderr
    found.jobs(found.job)
    return found


@pytest.fixture
def start() -> Iterator[Start]:
    begun: list[subprocess.Popen[str]] = []

    def started(at: Cluster, **environment: str) -> subprocess.Popen[str]:
        words = ("serve", "--module", MODULE, "--", *ENGINE_ARGS)
        begun.append(at.start(*words, **environment))
        return begun[-1]

    yield started
    for process in begun:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=60)


def state(at: Cluster) -> str | None:
    return at.endpoint().get("state")


def client(at: Cluster) -> api_client.Endpoint:
    found = at.endpoint()
    port = int(found["url"].split(":")[2].partition("/")[0])
    return api_client.Endpoint(
        "127.0.0.1", port, tls.compute_fingerprint(found["certificate"]), HANGS_S
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_endpoint_tells_where_it_answers_and_the_secrets_are_its_owners(
    tmp_path: Path, start: Start
) -> None:
    at = cluster(tmp_path)
    process = start(at)
    assert until(lambda: state(at) == "ready")
    found = at.endpoint()
    closed_form.validate(found, "endpoint")
    assert found["model"] == "kimi"
    assert found["ends_at"] is not None
    assert api_client.request_chat(client(at), None, BODY).status == 200
    key = at.root / "keys" / "api.key"
    told = json.loads((at.there / "engine-0.json").read_text())
    for path in (key, at.root / "endpoints" / "4242.json"):
        assert mode(path) == 0o600
    for folder in ("keys", "endpoints", "run/4242"):
        assert mode(at.root / folder) == 0o700
    assert all(mode(path) == 0o600 for path in (at.root / "run" / "4242").glob("*.k*"))
    # No secret in what everybody may read, nor in the log.
    secrets = [key.read_text().strip(), (at.root / "run/4242/job.key").read_text().strip()]
    assert not [one for one in secrets if one in " ".join(told["argv"])]
    assert told["env"]["HOME"] == str(at.root / "cache" / "home")
    most = at.plan["proxy"]["request_body_max_bytes"]
    assert told["env"]["KIMI_REQUEST_BODY_MAX"] == str(most)
    assert told["argv"][: len(ENGINE_ARGS)] == list(ENGINE_ARGS)
    assert "--middleware" in told["argv"]
    process.send_signal(signal.SIGTERM)
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert not [one for one in secrets if one in log]
    assert state(at) == "ended"
    assert not (at.root / "run" / "4242").exists()
    assert not (at.there / "submitted.json").exists()


def test_before_the_walltime_ends_answers_end_and_a_successor_is_submitted(
    tmp_path: Path, start: Start
) -> None:
    at = cluster(tmp_path)
    process = start(at)
    assert until(lambda: state(at) == "ready")
    where = client(at)
    code = (
        "import json, sys\nfrom kimi_prov.on_host.endpoint import api_client\n"
        "a = json.loads(sys.argv[1])\n"
        "print(api_client.request_chat(api_client.Endpoint(*a[:4]), None, a[4]).status)"
    )
    asked = [where.host, where.port, where.fingerprint, HANGS_S, {**BODY, "slow": 2}]
    line = [sys.executable, "-c", code, json.dumps(asked)]
    slow = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert until((at.there / "at work").exists)
    process.send_signal(signal.SIGUSR1)
    assert slow.communicate(timeout=60)[0].strip() == "200"
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 0, log
    submitted = json.loads((at.there / "submitted.json").read_text())
    assert submitted["argv"] == ["--parsable", "--dependency=afterany:4242", "jobs/serve.sbatch"]
    assert (submitted["cwd"], submitted["slurm"]) == (str(at.folder), [])
    assert (state(at), at.endpoint()["successor"]) == ("ended", "4243")


def test_a_job_that_nobody_uses_ends_and_has_no_successor(tmp_path: Path, start: Start) -> None:
    at = cluster(tmp_path, KIMI_IDLE_MINUTES="0.05")
    process = start(at)
    assert until(lambda: state(at) == "ready")
    log, _ = process.communicate(timeout=90)
    assert process.returncode == 0, log
    assert "no request for 0.05 minutes" in log
    assert not (at.there / "submitted.json").exists()


def test_two_nodes_are_one_engine_and_the_head_ends_first(tmp_path: Path, start: Start) -> None:
    at = cluster(tmp_path, hosts=2)
    process = start(at)
    assert until(lambda: state(at) == "ready" and (at.there / "engine-1.json").exists())
    told = [json.loads((at.there / f"engine-{n}.json").read_text())["argv"] for n in (0, 1)]
    for rank, argv in enumerate(told):
        assert argv[argv.index("--nnodes") + 1] == "2"
        assert argv[argv.index("--node-rank") + 1] == str(rank)
        assert argv[argv.index("--master-addr") + 1] == "localhost"
    assert ["--headless" in argv for argv in told] == [False, True]
    assert ["--port" in argv for argv in told] == [True, False]
    (port,) = {argv[argv.index("--master-port") + 1] for argv in told}
    assert int(port) >= 29500 + 4242 % 1000
    process.send_signal(signal.SIGUSR1)
    log, _ = process.communicate(timeout=90)
    assert process.returncode == 0, log
    ended = [float((at.there / f"ended-{rank}").read_text()) for rank in (0, 1)]
    assert ended[0] < ended[1]


def test_an_engine_that_is_killed_is_started_again(tmp_path: Path, start: Start) -> None:
    at = cluster(tmp_path)
    process = start(at)
    assert until(lambda: state(at) == "ready")
    first = (at.there / "engine-0.json").stat().st_mtime_ns
    line = ["pgrep", "-f", str(at.root)]
    pids = subprocess.run(line, capture_output=True, text=True, check=False).stdout
    engines = [
        int(pid)
        for pid in pids.split()
        if b"--ssl-certfile" in _argv(pid) and MODULE.encode() in _argv(pid)
    ]
    for pid in engines:
        os.kill(pid, signal.SIGKILL)
    assert engines
    assert until(lambda: (at.there / "engine-0.json").stat().st_mtime_ns != first)
    assert until(lambda: state(at) == "ready" and _answers(at))
    process.send_signal(signal.SIGTERM)
    log, _ = process.communicate(timeout=60)
    assert "started again, 1 of 3" in log


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_job_that_is_preempted_waits_for_its_end_so_that_it_is_queued_again(
    tmp_path: Path, start: Start, hosts: int
) -> None:
    """SLURM then ends the step, tells the batch shell nothing, and ends that after a while."""
    at = cluster(tmp_path, hosts=hosts)
    process = start(at)
    assert until(lambda: state(at) == "ready")
    (at.there / "preempted").touch()
    (step,) = [child for child in psutil.Process(process.pid).children() if _is_srun(child)]
    step.terminate()
    assert until(lambda: state(at) == "ended")
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert "preempted" in log
    assert "started again" not in log
    assert not (at.there / "submitted.json").exists()


def _is_srun(process: psutil.Process) -> bool:
    return any(word.endswith("/srun") for word in process.cmdline())


def _argv(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _answers(at: Cluster) -> bool:
    try:
        return api_client.request_chat(client(at), None, BODY).status == 200
    except api_client.ApiError:
        return False


def test_an_engine_that_does_not_start_fails_the_job(tmp_path: Path, start: Start) -> None:
    at = cluster(tmp_path)
    (at.there / "broken").touch()
    # Of a job that was killed, and of one that serves beside.
    at.jobs(at.job, "4241")
    for number in ("4240", "4241"):
        (at.root / "run" / number).mkdir(parents=True)
        (at.root / "run" / number / "job.key").touch()
    process = start(at)
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert [path.name for path in (at.root / "run").iterdir()] == ["4241"]
    assert "before it answered" in log
    assert state(at) == "failed"


def test_a_job_ends_with_the_cause_in_place_of_a_quoted_line(tmp_path: Path) -> None:
    """As sbatch has it: the job's own file, to which the engine writes too."""
    at = cluster(tmp_path)
    recorded = (ROOT / "tests/data/recordings/logs/lab/shard-truncated.log").read_text()
    (at.there / "broken").write_text(recorded.splitlines()[2].partition("]: ")[2])
    output = tmp_path / "serve.4242.out"
    line = at.command("serve", "--module", MODULE, "--", *ENGINE_ARGS)
    with output.open("w") as file:
        done = subprocess.run(
            line, check=False, env=at.environment, cwd=at.folder, stdout=file, stderr=file
        )
    log = output.read_text()
    assert done.returncode == 1, log
    assert "cause: A file of the weights is cut off" in log
    assert "  fix:  " in log
    assert "its lines above" not in log


def test_a_walltime_that_is_too_short_for_the_start_is_named(tmp_path: Path, start: Start) -> None:
    at = cluster(tmp_path)
    (at.there / "slow").touch()
    process = start(at)
    assert until((at.there / "engine-0.json").exists)
    process.send_signal(signal.SIGUSR1)
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the walltime ends before the model answered" in log
    assert state(at) == "failed"
    assert not (at.there / "submitted.json").exists()


def test_what_is_missing_is_said_with_the_command_that_mends_it(tmp_path: Path) -> None:
    at = Cluster(tmp_path, plan())
    words = ("serve", "--module", MODULE, "--", *ENGINE_ARGS)
    done = at.run(*words)
    assert done.returncode == 2
    assert "the engine is not installed" in done.stderr
    assert "sbatch jobs/environment.sbatch" in done.stderr
    at.install()
    assert "sbatch jobs/weights.sbatch" in at.run(*words).stderr
    assert "KIMI_ROOT is not set" in at.run(*words, KIMI_ROOT="").stderr
    for job in ("accept", "bench"):
        assert "no server answers" in at.run(job, "newest").stderr


def test_a_job_with_another_number_of_nodes_is_refused(tmp_path: Path) -> None:
    at = cluster(tmp_path, hosts=2)
    at.nodes = "localhost"
    done = at.run("serve", "--module", MODULE, "--", *ENGINE_ARGS)
    assert "1 nodes, and the engine is planned for 2" in done.stderr


def test_an_environment_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    made = plan()
    made["engine"]["python_version"] = "{}.{}".format(*sys.version_info[:2])
    at = Cluster(tmp_path, made, {"KIMI_OFFLINE": "1"})
    lock = at.folder / "locks" / "vllm.txt"
    lock.write_text("absent==1.0 --hash=sha256:" + "0" * 64 + "\n")
    done = at.run("environment")
    assert done.returncode == 2
    assert "./prepare-login.sh" in done.stderr
    folder = Path(at.place("/srv/kimi/engines/vllm"))
    assert folder.is_dir()
    assert "sbatch jobs/environment.sbatch" in at.run("serve", "--module", MODULE).stderr
    lock.write_text("# nothing\n")
    (folder / "left-over").touch()
    done = at.run("environment")
    assert done.returncode == 0, done.stderr
    assert (folder / ".complete").exists()
    assert not (folder / "left-over").exists()
    assert "is complete already" in at.run("environment").stdout


def test_another_python_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    made = plan()
    made["engine"]["python_version"] = "3.1"
    done = Cluster(tmp_path, made).run("environment")
    assert "the packages are pinned for 3.1; name a Python 3.1" in done.stderr
