"""What runs in a pod, in real processes; the engine is a stand-in."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import closed_form
import pytest
import stand_in_engine
from pod_stand_in import BODY, KEY, METRICS_KEY, Pod
from ports import free_port
from waiting import HANGS_S, until
from weights_server import Server

from kimi_prov.on_host.endpoint import api_client, tls
from kimi_prov.on_host.weights import manifest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    Serve = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that are ended with the test."""
    begun: list[subprocess.Popen[str]] = []

    def started(pod: Pod, **environment: str) -> subprocess.Popen[str]:
        begun.append(pod.start("serve", **environment))
        return begun[-1]

    yield started
    for process in begun:
        if process.stdout and not process.stdout.closed:
            process.terminate()
            # By this a test that failed is understood.
            sys.stdout.write(process.communicate(timeout=60)[0])


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    """A pod whose weights are verified."""
    found = Pod(tmp_path)
    assert found.run("fetch").returncode == 0
    return found


def log_of(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=90)[0]


def test_weights_are_fetched_once_and_the_server_waits_for_none(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    refused = pod.run("serve")
    assert refused.returncode == 2
    assert "the weights are not verified: " in refused.stderr
    first, second = pod.run("fetch"), pod.run("fetch")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "verified against manifest" in first.stdout
    assert "already verified" in second.stdout


def test_words_that_are_not_known_start_nothing(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    for name in ("fetch", "serve"):
        shown, refused = pod.run(name, "--help"), pod.run(name, "--dry-run")
        assert (shown.returncode, f"usage: {name}" in shown.stdout) == (0, True), shown
        assert (refused.returncode, "unrecognized arguments" in refused.stderr) == (2, True)
    assert not list((pod.root / "srv/kimi/models").iterdir())


def test_other_bytes_than_the_manifest_names_fail_the_job(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    (pod.source / "config.json").write_text("{1\n")
    done = pod.run("fetch")
    assert done.returncode != 0
    assert "config.json" in done.stderr
    assert pod.run("serve").returncode == 2


def test_a_fetch_whose_container_was_killed_goes_on(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    files = {"model.safetensors": os.urandom(1 << 20)}
    rows = [
        {"path": path, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        for path, body in files.items()
    ]
    server = Server({**files, manifest.NAME: json.dumps({"files": rows}).encode()})
    pod.plan["weights"] |= {"source": server.url, "manifest": None}
    server.behaviour.rate = 400_000
    held = pod.root / "srv/kimi/models/m/r.lock"
    try:
        process = pod.start("fetch")
        assert until(lambda: server.behaviour.served.get("model.safetensors"))
        assert held.exists()
        process.send_signal(signal.SIGTERM)
        log_of(process)
        assert process.returncode == 128 + signal.SIGTERM
        assert not held.exists()
        server.behaviour.rate = None
        assert pod.run("fetch").returncode == 0
    finally:
        server.stop()


def test_it_answers_with_the_key_and_its_secrets_stay_in_their_files(
    pod: Pod, serve: Serve
) -> None:
    process = serve(pod)
    assert pod.ready("--live").returncode == 0
    assert until(pod.is_ready)
    paths = {"chat": "/v1/chat/completions", "metrics": "/metrics", "health": "/health"}
    asked = [("chat", KEY, 200), ("chat", None, 401), ("chat", "sk-wrong", 401)]
    asked += [("metrics", METRICS_KEY, 200), ("metrics", KEY, 404), ("metrics", None, 401)]
    asked += [("health", None, 200), ("chat", METRICS_KEY, 401)]
    for name, key, status in asked:
        method = "POST" if name == "chat" else "GET"
        reply = api_client.call(
            pod.endpoint, method, paths[name], key, BODY if name == "chat" else None
        )
        assert reply.status == status, (name, key)
    own = (pod.root / "tmp/kimi/pod.key").read_text().strip()
    most = pod.plan["proxy"]["request_body_max_bytes"]
    assert f"KIMI_REQUEST_BODY_MAX={most}" in pod.of_engine("environ").replace("\0", "\n")
    seen = pod.of_engine("cmdline") + pod.of_engine("environ")
    process.send_signal(signal.SIGTERM)
    log = log_of(process)
    assert process.returncode == 0, log
    for secret in (KEY, METRICS_KEY, own):
        assert secret not in seen
        assert secret not in log


def test_a_new_key_of_the_secret_counts_at_once(pod: Pod, serve: Serve) -> None:
    serve(pod)
    assert until(pod.is_ready)
    (pod.root / "run/kimi/key/new").write_text("sk-new\n")
    (pod.root / "run/kimi/key/new").replace(pod.root / "run/kimi/key/api-key")
    assert api_client.request_chat(pod.endpoint, "sk-new", BODY).status == 200
    assert api_client.request_chat(pod.endpoint, KEY, BODY).status == 401


def test_without_a_certificate_it_speaks_plain_http(tmp_path: Path, serve: Serve) -> None:
    pod = Pod(tmp_path, secure=False)
    assert pod.run("fetch").returncode == 0
    serve(pod)
    assert until(pod.is_ready)
    assert api_client.request_chat(pod.endpoint, KEY, BODY).status == 200


def asked_patiently(pod: Pod, running: int, seconds: int) -> tuple[list[int], threading.Thread]:
    """Ask for an answer that takes until the engine is told to end, and some seconds.

    It is under way, as one of so many.
    """
    answers: list[int] = []
    body = {**BODY, "user": f"patient {seconds}"}
    asked = threading.Thread(
        target=lambda: answers.append(api_client.request_chat(pod.endpoint, KEY, body).status)
    )
    asked.start()
    metrics = ("GET", "/metrics", METRICS_KEY)
    assert until(lambda: b"running %d" % running in api_client.call(pod.endpoint, *metrics).body)
    return answers, asked


def test_an_answer_ends_after_the_pod_was_told_to(pod: Pod, serve: Serve) -> None:
    process = serve(pod)
    assert until(pod.is_ready)
    answers, asked = asked_patiently(pod, 1, 3)
    process.send_signal(signal.SIGTERM)
    assert until((pod.root / "tmp/kimi/ending").exists)
    told = pod.ready()
    assert (told.returncode, "told to end" in told.stdout) == (1, True), told
    assert not answers
    asked.join(60)
    log = log_of(process)
    assert (answers, process.returncode) == ([200], 0), log


def test_probes_tell_an_engine_that_hangs_and_one_that_ended(pod: Pod, serve: Serve) -> None:
    process = serve(pod)
    assert until(pod.is_ready)
    assert pod.ready("--live").returncode == 0
    os.kill(pod.engine_pid(), signal.SIGSTOP)
    for words in ((), ("--live",)):
        since = time.monotonic()
        hung = pod.ready(*words, timeout_s=1)
        # It gives up after a second by itself; the rest is the process's own.
        assert time.monotonic() - since < HANGS_S
        assert (hung.returncode, "timed out" in hung.stdout) == (1, True), hung
        assert len(hung.stdout.splitlines()) == 1
    os.kill(pod.engine_pid(), signal.SIGKILL)
    log = log_of(process)
    assert process.returncode == 128 + signal.SIGKILL, log
    assert "the engine ended with status 137" in log
    assert pod.ready().returncode == 1


def test_an_end_by_a_signal_is_told_with_its_cause(pod: Pod, serve: Serve) -> None:
    """As of a library that was built for another processor: the engine itself says nothing."""
    process = serve(pod)
    assert until(pod.is_ready)
    os.kill(pod.engine_pid(), signal.SIGILL)
    log = log_of(process)
    assert process.returncode == 128 + signal.SIGILL, log
    assert "cause: The processor lacks an instruction" in log
    assert "  fix:  lscpu" in log
    assert "its own lines above" not in log


def test_a_probe_that_cannot_keep_what_it_saw_does_not_fail_for_that(
    pod: Pod, serve: Serve
) -> None:
    serve(pod)
    assert until(pod.is_ready)
    # As where nothing is left of /tmp, for root too.
    (pod.root / "tmp/kimi/seen.json").unlink()
    (pod.root / "tmp/kimi/seen.json").mkdir()
    found = pod.ready()
    assert (found.returncode, found.stdout) == (0, ""), found


def test_what_an_earlier_container_left_is_not_taken_for_this_ones(pod: Pod, serve: Serve) -> None:
    first = serve(pod)
    assert until(pod.is_ready)
    os.kill(pod.engine_pid(), signal.SIGKILL)
    log_of(first)
    (pod.root / "run/kimi/key/api-key").write_text("")
    assert pod.run("serve").returncode == 2
    assert "was not started yet" in pod.ready().stdout


def test_two_pods_are_one_engine_and_the_head_ends_first(tmp_path: Path, serve: Serve) -> None:
    pods = [Pod(tmp_path / name, hosts=2) for name in ("head", "rank")]
    logs = []
    # The port is one in a cluster, where each pod has an address of its own.
    pods[1].port = pods[0].port
    meeting = str(free_port())
    for index, pod in enumerate(pods):
        pod.environment = {
            "LWS_LEADER_ADDRESS": "localhost",
            "LWS_GROUP_SIZE": "2",
            "LWS_WORKER_INDEX": str(index),
            "STAND_IN_MASTER_PORT": meeting,
        }
        assert pod.run("fetch").returncode == 0
    head, rank = (serve(pod) for pod in pods)
    assert until(pods[0].is_ready)
    assert until(pods[1].is_ready)
    lines = [pod.of_engine("cmdline").split("\0") for pod in pods]
    for index, line in enumerate(lines):
        assert line[line.index("--nnodes") + 1] == "2"
        assert line[line.index("--node-rank") + 1] == str(index)
        assert line[line.index("--master-addr") + 1] == "localhost"
        assert line[line.index("--master-port") + 1] == "29500"
    assert ["--headless" in line for line in lines] == [False, True]
    assert ["--port" in line for line in lines] == [True, False]
    assert api_client.request_chat(pods[0].endpoint, KEY, BODY).status == 200
    first, asked = asked_patiently(pods[0], 1, 1)
    last, asked_too = asked_patiently(pods[0], 2, 3)
    of_rank = pods[1].engine_pid()
    # A cluster tells both at once.
    for process in (rank, head):
        process.send_signal(signal.SIGTERM)
    asked.join(60)
    # Of two answers one has ended: the head needs its rank for the other.
    assert (first, last) == ([200], [])
    assert Path(f"/proc/{of_rank}").exists()
    asked_too.join(60)
    assert last == [200]
    logs = [log_of(head), log_of(rank)]
    assert [head.returncode, rank.returncode] == [0, 0], logs
    assert not Path(f"/proc/{of_rank}").exists()


def test_a_head_waits_for_its_own_name_too(tmp_path: Path, serve: Serve) -> None:
    pod = Pod(tmp_path, hosts=2)
    pod.environment = {
        "LWS_LEADER_ADDRESS": "kimi-0.invalid",
        "LWS_GROUP_SIZE": "2",
        "LWS_WORKER_INDEX": "0",
    }
    assert pod.run("fetch").returncode == 0
    process = serve(pod)
    assert process.stdout
    assert process.stdout.readline() == "waiting for the name of the leader, kimi-0.invalid\n"
    assert process.poll() is None


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, "the group has 1 pod (LWS_GROUP_SIZE), and the engine is planned for 2"),
        ({"LWS_GROUP_SIZE": "3"}, "the group has 3 pods"),
        ({"LWS_GROUP_SIZE": "two"}, "expected a whole number, found 'two'"),
        ({"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "a;reboot"}, "are not a member of a group"),
        (
            {"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "--headless"},
            "are not a member of a group",
        ),
        (
            {"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "a", "LWS_WORKER_INDEX": "2"},
            "are not a member of a group",
        ),
    ],
)
def test_a_group_that_is_none_is_refused(
    tmp_path: Path, variables: dict[str, str], told: str
) -> None:
    done = Pod(tmp_path, hosts=2, environment=variables).run("serve")
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def test_without_plan_or_key_it_says_what_to_mount(pod: Pod) -> None:
    (pod.root / "run/kimi/key/api-key").write_text("\n")
    done = pod.run("serve")
    assert (done.returncode, "its item is named api-key" in done.stderr) == (2, True)
    pod.plan = {}
    done = pod.run("serve")
    assert (done.returncode, "mount the ConfigMap" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"key/metrics-key": " \n"}, "metrics-key is empty"),
        ({"tls/tls.key": None}, "tls.key is missing, but tls.crt exists"),
        ({"tls/tls.crt": None}, "tls.crt is missing, but tls.key exists"),
        ({"tls/tls.key": tls.make_self_signed(["other"])}, "key values mismatch"),
        ({"tls/tls.crt": "no certificate"}, "are not a pair"),
    ],
)
def test_secrets_that_cannot_be_served_are_refused_before_the_load(
    pod: Pod, changed: dict[str, str | None], told: str
) -> None:
    for name, text in changed.items():
        path = pod.root / "run/kimi" / name
        path.unlink() if text is None else path.write_text(text)
    done = pod.run("serve")
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert stand_in_engine.SAYS not in done.stdout


def test_probes_speak_what_the_engine_does_whatever_is_mounted_since(
    tmp_path: Path, serve: Serve
) -> None:
    pod = Pod(tmp_path, secure=False)
    assert pod.run("fetch").returncode == 0
    serve(pod)
    assert until(pod.is_ready)
    (pod.root / "run/kimi/tls/tls.crt").write_text("mounted while the engine runs\n")
    assert pod.ready("--live").returncode == 0


def test_accept_tells_each_check_in_one_document(pod: Pod, serve: Serve) -> None:
    serve(pod)
    assert until(pod.is_ready)
    done = pod.run("accept", "--url", f"https://127.0.0.1:{pod.port}")
    document = json.loads(done.stdout)
    closed_form.validate(document, "pod-accept")
    found = {row["name"]: row["status"] for row in document["checks"]}
    kept = ("tls", "no-key-refused", "wrong-key-refused", "engine-pages-closed", "models", "chat")
    assert {name: found[name] for name in kept} == dict.fromkeys(kept, "ok")
    # The stand-in streams nothing.
    assert (found["streaming"], document["ok"], done.returncode) == ("fail", False, 1)
    done = pod.run("accept", "--url", f"https://127.0.0.1:{pod.port}", "--suite", "full")
    document = json.loads(done.stdout)
    closed_form.validate(document, "pod-accept")
    rows = {row["name"]: row for row in document["checks"]}
    # The stand-in keeps to no schema; the plan's model is random, and in a pod nothing else asks.
    form = rows["structured-output"]
    assert (form["status"], form["observed"]) == ("fail", "hello")
    assert rows["facts"]["detail"] == "random weights: answers have no meaning"
    tokens = rows["special-tokens"]
    assert (tokens["status"], "no unit for code" in tokens["detail"]) == ("skip", True)
    assert "structured-output" in done.stderr
    refused = pod.run("accept", "--url", "ftp://kimi")
    assert (refused.returncode, "expected https://HOST:PORT" in refused.stderr) == (2, True)
