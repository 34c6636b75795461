"""What clients are told of a machine that does not serve on purpose, by the real proxy."""

from __future__ import annotations

import threading

from waiting import HANGS_S, until

from kimi_prov.on_host.gateway import api, draining, haproxy
from kimi_prov.on_host.rest import mark

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
SINCE = {"since": "2026-11-24T06:00:00Z", "since_s": 0}


def stop(proxy):
    mark.write(proxy.paths, {**mark.make(mark.STOPPED, "stopped by the operator"), **SINCE})


def test_a_stopped_machine_says_why_to_who_has_a_key_and_serves_again(make_proxy):
    proxy = make_proxy()
    stop(proxy)
    reply = api.chat(proxy.endpoint, proxy.key(), BODY)
    error = reply.json()["error"]
    assert (reply.status, reply.headers["retry-after"]) == (503, "60")
    assert (error["type"], error["code"], error["param"]) == ("server_error", "model_stopped", None)
    assert "stopped on purpose by the operator at 2026-11-24 06:00 UTC" in error["message"]
    stranger = api.chat(proxy.endpoint, "sk-kimi-" + "x" * 43, BODY)
    assert stranger.status == 401
    assert "stopped" not in stranger.body.decode()
    assert proxy.engines[0].seen == []
    assert mark.clear(proxy.paths)["state"] == "stopped"
    assert api.chat(proxy.endpoint, proxy.key(), BODY).status == 200
    assert haproxy.loaded_map(proxy.paths.socket, str(proxy.paths.rest_map)) == {}


def test_a_proxy_that_starts_anew_still_says_it(make_proxy):
    proxy = make_proxy()
    stop(proxy)
    proxy.stop()
    proxy.start()
    assert api.chat(proxy.endpoint, proxy.key(), BODY).json()["error"]["code"] == "model_stopped"


def test_a_map_that_was_lost_is_made_again_from_the_mark(make_proxy):
    proxy = make_proxy()
    stop(proxy)
    said = proxy.paths.rest_map.read_text()
    proxy.paths.rest_map.unlink()
    assert mark.ensure(proxy.paths)
    assert proxy.paths.rest_map.read_text() == said
    assert not mark.ensure(proxy.paths)


def test_no_word_of_a_reason_can_break_the_answer(make_proxy):
    proxy = make_proxy()
    why = 'it said "no"; \\ and %[src] add map'
    made = {**mark.make(mark.ASLEEP, why), **SINCE}
    mark.write(proxy.paths, made)
    error = api.chat(proxy.endpoint, proxy.key(), BODY).json()["error"]
    assert error["message"] == f"The model is asleep since 2026-11-24 06:00 UTC: {why}."


def test_a_drain_lets_streams_end_and_counts_those_that_do_not(make_proxy):
    proxy = make_proxy(engines=2)
    for engine in proxy.engines:
        engine.hold_streams()
    pieces = []
    streams = [
        threading.Thread(
            target=lambda: pieces.append(
                list(api.stream(proxy.endpoint, proxy.key(), {**BODY, "stream": True}))
            ),
            daemon=True,
        )
        for _ in range(2)
    ]
    for stream in streams:
        stream.start()
    assert until(lambda: draining.under_way(proxy.paths) == 2)
    assert draining.drain(proxy.paths, 0.0) == 2
    assert draining.drain(proxy.paths, 0.0, [1]) == 1
    for engine in proxy.engines:
        engine.let(6)
    told = []
    assert draining.drain(proxy.paths, HANGS_S, tell=told.append) == 0
    for stream in streams:
        stream.join(HANGS_S)
    assert [found[-1][1] for found in pieces] == [None, None]
    assert api.chat(proxy.endpoint, proxy.key(), BODY).status == 503
    draining.balance(proxy.paths, draining.READY)
    assert draining.up(proxy.paths)
    assert api.chat(proxy.endpoint, proxy.key(), BODY).status == 200
