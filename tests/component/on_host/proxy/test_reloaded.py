"""A reload of the proxy changes nothing of what is counted and drained; the real HAProxy."""

from __future__ import annotations

import contextlib
import signal
import threading

import http2
import pytest
from gateway_site import QUESTION, Site
from waiting import until

from kimi_prov.on_host.endpoint import api_client, draining, haproxy, stop_state, tls
from kimi_prov.on_host.keys import key_map, publish
from kimi_prov.on_host.proxy import converge

BOB = "sk-of-bob"


@pytest.fixture
def ask():
    """Ask at a proxy what is not answered until the test lets it, or ends."""
    engines: list = []

    def asked(machine, at) -> None:
        engines.extend(machine.engines)
        for engine in machine.engines:
            engine.hangs = True

        def wait() -> None:
            with contextlib.suppress(OSError, api_client.ApiError):
                api_client.request_chat(*at, QUESTION)

        threading.Thread(target=wait, daemon=True).start()
        assert until(lambda: any(engine.seen for engine in machine.engines))

    yield asked
    for engine in engines:
        engine.hangs = False


def test_a_request_that_came_before_a_reload_is_waited_for(make_proxy, ask):
    machine = make_proxy(2, proxy_drain_s=60)
    ask(machine, (machine.endpoint, machine.key()))
    machine.reload()
    assert draining.count_requests(machine.paths) == 1
    assert sorted(row["requests"] for row in haproxy.list_servers(machine.paths.socket)) == [0, 1]
    (busy,) = [n for n, engine in enumerate(machine.engines) if engine.seen]
    assert draining.count_requests(machine.paths, [busy]) == 1
    assert draining.count_requests(machine.paths, [1 - busy]) == 0
    assert draining.drain(machine.paths, 0.5) == 1
    for engine in machine.engines:
        engine.hangs = False
    assert draining.drain(machine.paths, 30) == 0


@pytest.fixture
def kept(make_proxy):
    """A proxy after a reload, and a client that keeps its connection to the earlier worker."""
    machine = make_proxy(2, {"bob": BOB}, proxy_drain_s=60)
    with contextlib.closing(http2.Connection(machine.port)) as client:
        assert client.status(client.ask(BOB)) == 200
        for engine in machine.engines:
            engine.hangs = True
        client.ask(BOB, QUESTION)
        assert until(lambda: sum("chat" in path for e in machine.engines for path, _ in e.seen))
        machine.reload()
        yield machine, client
        for engine in machine.engines:
            engine.hangs = False


def test_a_key_that_is_removed_opens_nothing_over_an_old_connection(kept):
    machine, client = kept
    assert client.status(client.ask(BOB)) == 200
    left = key_map.parse_map(machine.paths.key_map.read_text())
    del left["bob"]
    publish.publish(machine.paths, left)
    assert client.status(client.ask(BOB)) == http2.OTHER
    # Another key goes on.
    assert client.status(client.ask(machine.key())) == 200


def test_a_machine_that_is_stopped_answers_nobody_over_an_old_connection(kept):
    machine, client = kept
    stop_state.write(machine.paths, stop_state.build_state(stop_state.STOPPED, "by the operator"))
    assert client.status(client.ask(BOB)) == http2.OTHER
    stop_state.clear(machine.paths)
    assert client.status(client.ask(BOB)) == 200


def test_a_gateway_counts_it_too(make_proxy, ask):
    site = Site(make_proxy, 1, proxy_drain_s=60)
    (host,) = site.hosts.values()
    ask(host, (site.gateway.endpoint, site.client))
    site.gateway.reload()
    (row,) = haproxy.list_servers(site.gateway.paths.socket)
    assert row["requests"] == 1


def test_what_is_taken_out_stays_out(make_proxy, monkeypatch):
    machine = make_proxy(3)
    # systemd is stood in for.
    state = {"state": "active", "enabled": True, "load_state": "loaded"}
    monkeypatch.setattr(converge.units, "converge", lambda _unit, *, check: check)
    monkeypatch.setattr(converge.units, "read_states", lambda *names: dict.fromkeys(names, state))
    reloads = lambda _verb, _unit: machine.process.send_signal(signal.SIGUSR2)  # noqa: E731
    monkeypatch.setattr(converge.units, "control", reloads)
    assert converge.converge(machine.paths)["changed"]
    draining.set_state(machine.paths, draining.DRAIN, [0])
    draining.set_state(machine.paths, draining.OUT, [1])
    tls.install(machine.paths, tls.make_self_signed(["lab2"]))
    assert converge.converge(machine.paths)["did"] == "reload"
    found = [row["status"] for row in haproxy.list_servers(machine.paths.socket)]
    assert found == ["DRAIN", "MAINT", "UP"]
