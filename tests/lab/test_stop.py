"""A machine that is stopped on purpose: drained, over a reboot, told by every command, started."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from machines import HANGS_S, kimi_prov
from waiting import until

from kimi_prov.contract import paths
from kimi_prov.on_host.endpoint import api_client

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from machines import Host

pytestmark = pytest.mark.lab

MARK = "/var/lib/kimi/state/stopped.json"
QUESTION = {"model": "kimi-k2-lab", "messages": [{"role": "user", "content": "Count."}]}


def command(name: str, host: Host, *more: str) -> subprocess.CompletedProcess[str]:
    return kimi_prov(name, host.inventory, "--limit", host.name, *more)


def status(host: Host) -> tuple[int, dict[str, Any]]:
    done = command("status", host, "--format", "json")
    document = json.loads(done.stdout)
    closed_form.validate(document, "status")
    found: dict[str, Any] = document["hosts"][host.name]
    return done.returncode, found


def door(host: Host) -> tuple[api_client.Endpoint, str]:
    key, fingerprint = host.door()
    return api_client.Endpoint(host.address, 8000, fingerprint, 120.0), key


def came(first: threading.Event, client: threading.Thread) -> bool:
    """Wait for the first piece of an answer; False where the client has ended without one."""
    until(lambda: first.is_set() or not client.is_alive(), HANGS_S)
    return first.is_set()


def serves(host: Host) -> None:
    endpoint, key = door(host)
    assert api_client.request_chat(endpoint, key, {**QUESTION, "max_tokens": 2}).status == 200


def test_a_stop_lets_a_stream_end_and_everybody_is_told_why(
    served_host: Host, record_property: Callable[[str, object], None]
) -> None:
    endpoint, key = door(served_host)
    pieces: list[Any] = []
    begun = threading.Event()

    def stream() -> None:
        asked = {**QUESTION, "max_tokens": 1000, "ignore_eos": True}
        for piece in api_client.stream(endpoint, key, asked):
            pieces.append(piece)
            begun.set()

    client = threading.Thread(target=stream, daemon=True)
    client.start()
    assert came(begun, client)
    # Its worker ends with it; the one that is asked from now on has never seen it.
    served_host.ssh("systemctl reload kimi-proxy")
    told = json.loads(served_host.ssh(f"python3 -I {paths.ZIPAPP} proxy-state"))
    assert [engine["requests"] for engine in told["servers"]] == [1]
    stopped = command("stop", served_host)
    client.join(HANGS_S)
    assert stopped.returncode == 0, stopped.stderr
    assert pieces[-1][1] is None, "the stream was cut"
    assert "no request was cut" in stopped.stdout
    record_property("stop", stopped.stdout.strip().splitlines()[0])

    code, found = status(served_host)
    assert (code, found["ok"], found["state"]) == (0, True, "stopped")
    assert found["units"]["kimi-serve@0.service"]["state"] == "inactive"
    assert found["units"]["kimi-proxy.service"]["state"] == "active"
    assert found["ram_disk"]["mounted"] is None
    assert found["rest"]["requests_cut"] == 0
    assert found["rest"]["start"]["seconds"] > 0

    reply = api_client.request_chat(endpoint, key, QUESTION)
    assert (reply.status, reply.json()["error"]["code"]) == (503, "model_stopped")
    assert reply.headers["retry-after"]
    assert api_client.request_chat(endpoint, None, QUESTION).status == 401

    drift = command("drift", served_host)
    assert drift.returncode == 0, drift.stdout
    verified = command("verify", served_host)
    assert verified.returncode == 1
    assert "stopped on purpose since" in verified.stdout
    assert "kimi-prov start" in verified.stdout
    # Nobody starts it by hand without saying so.
    served_host.ssh("systemctl start kimi-serve@0")
    assert served_host.ssh("systemctl is-active kimi-serve@0", check=False).strip() == "inactive"

    begun_again = command("start", served_host)
    assert begun_again.returncode == 0, begun_again.stderr
    assert "it serves: the model answered after" in begun_again.stdout
    record_property("start", begun_again.stdout.strip())
    assert served_host.ssh(f"ls {MARK}", check=False) == ""
    serves(served_host)
    again = served_host.apply()
    assert "changed=0" in again.stdout, again.stdout


@pytest.mark.slow
def test_a_stop_outlives_a_reboot_and_an_apply_ends_it(served_host: Host) -> None:
    assert command("stop", served_host).returncode == 0
    served_host.ssh("sync; systemctl reboot", check=False)
    kimi_prov("lab", "up", served_host.inventory)
    served_host.ssh("timeout 60 systemctl is-system-running --wait || true")
    code, found = status(served_host)
    assert (code, found["state"]) == (0, "stopped")
    assert found["ram_disk"]["mounted"] is None
    endpoint, key = door(served_host)
    assert (
        api_client.request_chat(endpoint, key, QUESTION).json()["error"]["code"] == "model_stopped"
    )
    bench = command("bench", served_host)
    assert bench.returncode == 1
    assert "stopped on purpose" in bench.stdout + bench.stderr
    applied = served_host.apply()
    assert applied.returncode == 0, applied.stderr
    assert status(served_host)[1]["state"] == "serving"
    serves(served_host)


@pytest.mark.slow
def test_what_does_not_end_in_time_is_cut_and_counted(served_host: Host) -> None:
    endpoint, key = door(served_host)
    begun, enough = threading.Event(), threading.Event()

    def streams() -> None:
        """Ask again and again: the small model is done with one before the command has begun."""
        asked = {**QUESTION, "max_tokens": 2000, "ignore_eos": True}
        while not enough.is_set():
            try:
                for _ in api_client.stream(endpoint, key, asked):
                    begun.set()
            except api_client.ApiError:
                return

    clients = [threading.Thread(target=streams, daemon=True) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        assert came(begun, clients[0])
        stopped = command("stop", served_host, "--drain", "0")
    finally:
        enough.set()
    assert stopped.returncode == 0, stopped.stderr
    cut = re.search(r"([1-4]) requests? cut", stopped.stdout)
    assert cut, stopped.stdout
    assert status(served_host)[1]["rest"]["requests_cut"] == int(cut[1])
    assert command("start", served_host).returncode == 0
    serves(served_host)


@pytest.mark.slow
def test_a_restart_is_measured_and_serves_again(served_host: Host) -> None:
    pid = served_host.ssh("systemctl show -P MainPID kimi-serve@0").strip()
    done = command("restart", served_host)
    assert done.returncode == 0, done.stderr
    assert "restarted in" in done.stdout
    assert served_host.ssh("systemctl show -P MainPID kimi-serve@0").strip() != pid
    found = status(served_host)[1]
    assert (found["state"], found["rest"]["last_start"]["by"]) == ("serving", "restart")
    serves(served_host)


@pytest.mark.slow
def test_engines_that_an_update_left_drained_take_requests_again_by_themselves(
    served_host: Host,
) -> None:
    """Its run has gone: the timer that it made on the machine comes in its place."""
    asked = json.dumps({"timeout_s": 1, "hold_s": 8})
    served_host.ssh(f"echo '{asked}' | python3 -I {paths.ZIPAPP} update drain")
    endpoint, key = door(served_host)
    assert api_client.request_chat(endpoint, key, {**QUESTION, "max_tokens": 2}).status == 503
    assert served_host.ssh("systemctl is-active kimi-undrain.timer").strip() == "active"

    def answers() -> bool:
        return api_client.request_chat(endpoint, key, {**QUESTION, "max_tokens": 2}).status == 200

    assert until(answers, HANGS_S)
    assert (
        served_host.ssh("systemctl is-active kimi-undrain.timer", check=False).strip() != "active"
    )
