"""What clients are told of a machine that does not serve on purpose, by the real proxy."""

from __future__ import annotations

import os
import threading

import pytest
from waiting import HANGS_S, until

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import api_client, draining, haproxy, stop_state
from kimi_prov.on_host.engine import serve
from kimi_prov.on_host.lifecycle import run
from kimi_prov.on_host.system import started

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
SINCE = {"since": "2026-11-24T06:00:00Z", "since_s": 0}


def stop(proxy):
    stop_state.write(
        proxy.paths,
        {**stop_state.build_state(stop_state.STOPPED, "stopped by the operator"), **SINCE},
    )


def start_in_turn(proxy, streams):
    """Start streams, each at an engine of its own: the proxy counts one before the next comes."""
    for count, stream in enumerate(streams, 1):
        stream.start()
        assert until(lambda count=count: draining.count_requests(proxy.paths) == count)


def test_a_stopped_machine_says_why_to_who_has_a_key_and_serves_again(make_proxy):
    proxy = make_proxy()
    stop(proxy)
    reply = api_client.request_chat(proxy.endpoint, proxy.key(), BODY)
    error = reply.json()["error"]
    assert (reply.status, reply.headers["retry-after"]) == (503, "60")
    assert (error["type"], error["code"], error["param"]) == ("server_error", "model_stopped", None)
    assert "stopped on purpose by the operator at 2026-11-24 06:00 UTC" in error["message"]
    stranger = api_client.request_chat(proxy.endpoint, "sk-kimi-" + "x" * 43, BODY)
    assert stranger.status == 401
    assert "stopped" not in stranger.body.decode()
    assert proxy.engines[0].seen == []
    assert stop_state.clear(proxy.paths)["state"] == "stopped"
    assert api_client.request_chat(proxy.endpoint, proxy.key(), BODY).status == 200
    assert haproxy.read_map(proxy.paths.socket, str(proxy.paths.rest_map)) == {}


def test_an_apply_that_ends_the_stop_puts_the_engines_into_the_balance_again(make_proxy):
    proxy = make_proxy()
    stop(proxy)
    assert draining.drain(proxy.paths, 0) == 0
    serve.allow_start(started.UnitPaths(str(proxy.paths.root)))
    assert until(lambda: draining.is_up(proxy.paths))
    assert api_client.request_chat(proxy.endpoint, proxy.key(), BODY).status == 200
    # Where nothing was stopped the balance is left as it is.
    draining.set_state(proxy.paths, draining.DRAIN)
    serve.allow_start(started.UnitPaths(str(proxy.paths.root)))
    assert not draining.is_up(proxy.paths)


def test_a_proxy_that_starts_anew_still_says_it(make_proxy):
    proxy = make_proxy()
    stop(proxy)
    proxy.stop()
    proxy.start()
    assert (
        api_client.request_chat(proxy.endpoint, proxy.key(), BODY).json()["error"]["code"]
        == "model_stopped"
    )


def test_a_map_that_was_lost_is_made_again_from_the_mark(make_proxy):
    proxy = make_proxy()
    stop(proxy)
    said = proxy.paths.rest_map.read_text()
    proxy.paths.rest_map.unlink()
    assert stop_state.ensure(proxy.paths)
    assert proxy.paths.rest_map.read_text() == said
    assert not stop_state.ensure(proxy.paths)


def test_no_word_of_a_reason_can_break_the_answer(make_proxy):
    proxy = make_proxy()
    why = 'it said "no"; \\ and %[src] add map'
    made = {**stop_state.build_state(stop_state.ASLEEP, why), **SINCE}
    stop_state.write(proxy.paths, made)
    error = api_client.request_chat(proxy.endpoint, proxy.key(), BODY).json()["error"]
    assert error["message"] == f"The model is asleep since 2026-11-24 06:00 UTC: {why}."


def test_a_drain_lets_streams_end_and_counts_those_that_do_not(make_proxy):
    proxy = make_proxy(engines=2)
    for engine in proxy.engines:
        engine.hold_streams()
    pieces = []
    streams = [
        threading.Thread(
            target=lambda: pieces.append(
                list(api_client.stream(proxy.endpoint, proxy.key(), {**BODY, "stream": True}))
            ),
            daemon=True,
        )
        for _ in range(2)
    ]
    start_in_turn(proxy, streams)
    assert draining.drain(proxy.paths, 0.0) == 2
    assert draining.drain(proxy.paths, 0.0, [1]) == 1
    for engine in proxy.engines:
        engine.let(6)
    told = []
    assert draining.drain(proxy.paths, HANGS_S, tell=told.append) == 0
    for stream in streams:
        stream.join(HANGS_S)
    assert [found[-1][1] for found in pieces] == [None, None]
    assert api_client.request_chat(proxy.endpoint, proxy.key(), BODY).status == 503
    draining.set_state(proxy.paths, draining.READY)
    assert draining.is_up(proxy.paths)
    assert api_client.request_chat(proxy.endpoint, proxy.key(), BODY).status == 200


SYSTEMCTL = """#!/bin/sh
if [ "$1" = show ]; then
  for last; do case $last in *.service)
    printf 'Id=%s\\nLoadState=loaded\\nActiveState=active\\n\\n' $last;;
  esac; done
else echo "$@" >> {root}/told; fi
"""


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """The lines that systemctl was told; every unit is active."""
    stub = tmp_path / "bin" / "systemctl"
    stub.parent.mkdir()
    stub.write_text(SYSTEMCTL.format(root=tmp_path))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    told = tmp_path / "told"
    return lambda: told.read_text().splitlines() if told.exists() else []


def restart(proxy, tell):
    count = len(proxy.engines)
    plan = {
        "engine": {"env_name": "vllm-1"},
        "model": {"name": "m", "serve_dir": "/nowhere"},
        "instances": [{"index": number} for number in range(count)],
        "timeouts": {"start_s": HANGS_S},
    }
    proxy.paths.rest_job.parent.mkdir(parents=True, exist_ok=True)
    job = {"job": run.RESTART, "drain_s": HANGS_S, "start_s": HANGS_S}
    return run._run_restart(proxy.paths, plan, job, tell)


def test_instances_restart_one_after_the_other_and_the_others_go_on(make_proxy, systemctl):
    proxy = make_proxy(engines=3)
    assert until(lambda: draining.is_up(proxy.paths))
    restarting, answered = [], []

    def tell(line):
        if not line.endswith(" restarts"):
            return
        restarting.append(line)
        rows = haproxy.list_servers(proxy.paths.socket)
        out = [row["name"] for row in rows if row["status"] != "UP"]
        assert out == [f"engine{len(restarting) - 1}"]
        # What clients ask meanwhile is answered by the others.
        answered.extend(
            api_client.request_chat(proxy.endpoint, proxy.key(), BODY).status for _ in range(4)
        )

    told = restart(proxy, tell)
    assert restarting == [f"kimi-serve@{number}.service restarts" for number in range(3)]
    assert set(answered) == {200}
    assert told.endswith("no request was cut")
    assert [line for line in systemctl() if line.startswith("restart")] == [
        f"restart --no-block kimi-serve@{number}.service" for number in range(3)
    ]
    assert draining.is_up(proxy.paths)


def test_a_restart_waits_for_the_answers_of_each_instance(make_proxy, systemctl):
    proxy = make_proxy(engines=2)
    for engine in proxy.engines:
        engine.hold_streams()
    asked = {**BODY, "stream": True}
    pieces = []
    streams = [
        threading.Thread(
            target=lambda: pieces.append(
                list(api_client.stream(proxy.endpoint, proxy.key(), asked))
            ),
            daemon=True,
        )
        for _ in range(2)
    ]
    start_in_turn(proxy, streams)
    told = []

    def tell(line):
        told.append(line)
        if line.endswith("1 request under way"):
            assert not [row for row in systemctl() if row.endswith(line.split(":")[0])]
            proxy.engines[int(line.split("@")[1][0])].let(6)

    assert restart(proxy, tell).endswith("no request was cut")
    for stream in streams:
        stream.join(HANGS_S)
    assert [found[-1][1] for found in pieces] == [None, None]
    assert [line for line in told if "restarts" in line or "under way" in line] == [
        "kimi-serve@0.service: 1 request under way",
        "kimi-serve@0.service restarts",
        "kimi-serve@1.service: 1 request under way",
        "kimi-serve@1.service restarts",
    ]


def test_an_instance_that_does_not_start_again_ends_the_restart(make_proxy, systemctl, tmp_path):
    proxy = make_proxy(engines=2)
    stub = tmp_path / "bin" / "systemctl"
    text = stub.read_text()
    stub.write_text(text.replace("ActiveState=active", "ActiveState=failed"))
    with pytest.raises(HostError, match=r"kimi-serve@0\.service failed"):
        restart(proxy, lambda _: None)
    # The other one was left alone, and the first gets requests as soon as it answers.
    assert [line for line in systemctl() if line.startswith("restart")] == [
        "restart --no-block kimi-serve@0.service"
    ]
    assert until(lambda: draining.is_up(proxy.paths))
