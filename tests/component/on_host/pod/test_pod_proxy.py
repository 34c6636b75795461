"""KTransformers in a pod: its engine on the loopback, HAProxy with TLS before it; a stand-in."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import stand_in_sglang
from pod_stand_in import BODY, KEY, METRICS_KEY, Pod
from ports import free_port
from waiting import until

from kimi_prov.on_host.endpoint import api_client, tls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Pair:
    """Both containers of a pod, in processes; each has its own /tmp there, and one here."""

    def __init__(self, base: Path) -> None:
        self.pod = Pod(base)
        stand_in_sglang.install(self.pod.engine)
        self.pod.plan["engine"]["name"] = "ktransformers"
        instance = self.pod.plan["instances"][0]
        python = instance["argv"][0]
        words = ["--model", "/srv/kimi/models/m/r", "--served-model-name", "kimi"]
        words += ["--host", "127.0.0.1", "--port", "8001"]
        words += ["--kt-cpuinfer", "4096", "--kt-numa-nodes", "0"]
        instance["argv"] = [python, "-m", stand_in_sglang.MODULE, *words]
        self.pod.environment["KIMI_ENGINE_PORT"] = str(free_port())
        done = self.pod.run("fetch")
        assert done.returncode == 0, done.stderr
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        self.started.append(self.pod.start(*words))
        return self.started[-1]

    def end(self) -> None:
        # The engine first: the proxy ends after it.
        for process in sorted(self.started, key=lambda row: "proxy" in row.args):
            if process.stdout and not process.stdout.closed:
                process.terminate()
                sys.stdout.write(process.communicate(timeout=60)[0])

    def answers(self) -> bool:
        return self.pod.run("proxy", "--ready").returncode == 0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.end()


def test_it_answers_by_tls_with_the_key_and_the_engine_by_the_loopback_alone(pair: Pair) -> None:
    engine = pair.start("serve")
    proxy = pair.start("proxy")
    assert until(pair.answers)
    assert until(pair.pod.is_ready)
    endpoint = pair.pod.endpoint
    assert api_client.request_chat(endpoint, KEY, BODY).status == 200
    assert [api_client.request_chat(endpoint, key, BODY).status for key in (None, "x")] == [401] * 2
    # The metrics have a key of their own, and other paths none that a client has.
    assert api_client.call(endpoint, "GET", "/metrics", METRICS_KEY).status == 200
    assert api_client.call(endpoint, "GET", "/metrics", KEY).status == 404
    assert api_client.call(endpoint, "GET", "/get_server_info", KEY).status == 404
    assert api_client.call(endpoint, "GET", "/health", None).status == 200
    line = pair.pod.of_engine("cmdline").split("\0")
    assert line[line.index("--host") + 1] == "127.0.0.1"
    for name in ("cmdline", "environ"):
        assert KEY not in pair.pod.of_engine(name)
    # Told to end, both: the answer under way still comes through.
    for process in (proxy, engine):
        process.send_signal(signal.SIGTERM)
    told = engine.communicate(timeout=60)[0]
    assert engine.returncode == 0, told
    assert stand_in_sglang.SAYS in told
    assert "kt-kernel's threads are" in told
    assert KEY not in told
    said = proxy.communicate(timeout=60)[0]
    assert (proxy.returncode, "ended as requested" in said) == (0, True), said


def test_an_answer_under_way_ends_before_the_proxy_does(pair: Pair) -> None:
    engine = pair.start("serve")
    proxy = pair.start("proxy")
    assert until(pair.pod.is_ready)
    assert until(pair.answers)
    line = [sys.executable, "-c", _ASK, json.dumps(pair.pod.port), KEY]
    asking = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert until(lambda: _under_way(pair) == 1)
        for process in (proxy, engine):
            process.send_signal(signal.SIGTERM)
        assert asking.communicate(timeout=60)[0].strip() == "200"
    finally:
        asking.kill()
    proxy.communicate(timeout=60)
    assert proxy.returncode == 0


_ASK = """
import http.client, json, ssl, sys
context = ssl._create_unverified_context()
way = http.client.HTTPSConnection("127.0.0.1", int(sys.argv[1]), timeout=60, context=context)
body = {"model": "kimi", "messages": [], "max_tokens": 1, "user": "patient 1"}
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + sys.argv[2]}
way.request("POST", "/v1/chat/completions", json.dumps(body), headers)
print(way.getresponse().status)
"""


def _under_way(pair: Pair) -> int:
    reply = api_client.call(pair.pod.endpoint, "GET", "/metrics", METRICS_KEY)
    rows = dict(row.split(" ") for row in reply.body.decode().splitlines() if " " in row)
    return int(float(rows.get("sglang:num_running_reqs", "0")))


def test_a_renewed_certificate_counts_without_a_restart(pair: Pair) -> None:
    pair.start("serve")
    proxy = pair.start("proxy")
    assert until(pair.pod.is_ready)
    assert until(pair.answers)
    folder = pair.pod.root / "run/kimi/tls"
    # One that is no pair changes nothing.
    pem = tls.make_self_signed(["kimi", "renewed"])
    certificate = tls.extract_certificates(pem)
    (folder / "tls.crt").write_text(certificate)
    assert api_client.request_chat(pair.pod.endpoint, KEY, BODY).status == 200
    (folder / "tls.key").write_text(pem[len(certificate) :])
    fingerprint = tls.compute_fingerprint(certificate)
    renewed = api_client.Endpoint("127.0.0.1", pair.pod.port, fingerprint, 60)

    def taken() -> bool:
        try:
            return api_client.request_chat(renewed, KEY, BODY).status == 200
        except api_client.ApiError:
            return False

    assert until(taken)
    assert proxy.poll() is None


def test_without_an_engine_it_says_so_in_the_clients_form(pair: Pair) -> None:
    pair.start("proxy")
    assert until(pair.answers)
    reply = api_client.request_chat(pair.pod.endpoint, KEY, BODY)
    assert (reply.status, reply.json()["error"]["code"]) == (503, "engine_unavailable")


def test_a_certificate_of_another_key_starts_nothing(pair: Pair) -> None:
    other = tls.make_self_signed(["kimi"])
    (pair.pod.root / "run/kimi/tls/tls.crt").write_text(tls.extract_certificates(other))
    done = pair.pod.run("proxy")
    assert done.returncode == 2
    assert "are not a pair" in done.stderr
