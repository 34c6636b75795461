"""What a client of the opened port sees, through the real HAProxy."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from waiting import HANGS_S, until

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import api_client, checks, haproxy
from kimi_prov.on_host.keys import key_map, publish
from kimi_prov.on_host.proxy import converge as proxy_module
from kimi_prov.on_host.system import machine_key

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def test_a_key_opens_and_its_absence_or_a_wrong_one_is_refused_in_openai_form(make_proxy):
    proxy = make_proxy(given={"alice": "sk-alice"})
    for key in (proxy.key(), "sk-alice"):
        assert api_client.request_chat(proxy.endpoint, key, BODY).status == 200
    for key in (None, "", "sk-kimi-wrong", publish.hash_key("sk-alice")):
        reply = api_client.request_chat(proxy.endpoint, key, BODY)
        assert reply.status == 401
        assert reply.headers["content-type"] == "application/json"
        assert reply.json()["error"]["code"] == "invalid_api_key"
        assert reply.json()["error"]["type"] == "invalid_request_error"
    assert len(proxy.engines[0].seen) == 2


def test_the_engine_gets_the_machine_key_in_place_of_the_clients_and_the_log_gets_none(make_proxy):
    proxy = make_proxy()
    api_client.request_chat(proxy.endpoint, proxy.key(), BODY)
    _, headers = proxy.engines[0].seen[0]
    own = machine_key.read(proxy.paths.machine_key)
    sent = [value for name, value in headers.items() if name.lower() == "authorization"]
    assert sent == [f"Bearer {own}"]
    proxy.stop()
    assert proxy.key() not in proxy.log
    assert own not in proxy.log
    assert own not in proxy.config.read_text()
    assert " verify POST /v1/chat/completions 200 " in proxy.log


def test_the_bearer_word_is_read_in_any_case_and_other_schemes_are_refused(make_proxy):
    proxy = make_proxy()
    for scheme, status in (("Bearer", 200), ("bearer", 200), ("BEARER", 200), ("Basic", 401)):
        connection = api_client.connect(proxy.endpoint)
        connection.request(
            "GET", "/v1/models", headers={"Authorization": f"{scheme} {proxy.key()}"}
        )
        assert connection.getresponse().status == status
        connection.close()


def test_only_the_api_comes_through(make_proxy):
    proxy = make_proxy()
    ways_around = ("/v1", "/v1/../metrics", "/v1/%2e%2e/metrics")
    for path in ("/metrics", "/version", "/docs", "/", "/load", *ways_around):
        assert api_client.call(proxy.endpoint, "GET", path, proxy.key()).status == 404, path
        assert api_client.call(proxy.endpoint, "GET", path, None).status == 401, path
        assert proxy.engines[0].seen == [], path


def test_rotation_refuses_the_old_key_and_takes_the_new_one_with_no_restart(make_proxy):
    proxy = make_proxy()
    old = publish.show(proxy.paths)
    assert api_client.request_chat(proxy.endpoint, old, BODY).status == 200
    process = proxy.process.pid
    publish.rotate(proxy.paths)
    new = publish.show(proxy.paths)
    assert old != new
    assert api_client.request_chat(proxy.endpoint, old, BODY).status == 401
    assert api_client.request_chat(proxy.endpoint, new, BODY).status == 200
    assert api_client.request_chat(proxy.endpoint, proxy.key(), BODY).status == 200
    assert proxy.process.pid == process
    assert proxy.process.poll() is None


def test_the_running_proxy_tells_what_it_has_loaded(make_proxy):
    proxy = make_proxy()
    assert haproxy.read_description(proxy.paths.socket) == "0123456789abcdef-fedcba9876543210"

    def loaded():
        found = haproxy.read_map(proxy.paths.socket, str(proxy.paths.key_map))
        return {name: value for value, name in found.items()}

    assert loaded() == key_map.parse_map(proxy.paths.key_map.read_text())
    publish.rotate(proxy.paths)
    assert loaded() == key_map.parse_map(proxy.paths.key_map.read_text())


def test_rotation_does_not_cut_a_stream_that_is_under_way(make_proxy):
    proxy = make_proxy()
    [engine] = proxy.engines
    engine.hold_streams()
    old = publish.show(proxy.paths)
    pieces = api_client.stream(proxy.endpoint, old, BODY)
    engine.let()
    first = next(pieces)
    publish.rotate(proxy.paths)
    assert api_client.request_chat(proxy.endpoint, old, BODY).status == 401
    engine.let(5)
    rest = list(pieces)
    assert first[1] is not None
    assert rest[-1][1] is None
    assert len(rest) == 5


def test_a_stream_comes_piece_by_piece(make_proxy):
    """The engine sends a piece when the one before has come: none may be kept back."""
    proxy = make_proxy()
    [engine] = proxy.engines
    engine.hold_streams()
    pieces = api_client.stream(proxy.endpoint, proxy.key(), BODY)
    for _ in range(6):
        engine.let()
        next(pieces)
    assert list(pieces) == []


def test_requests_go_to_the_idle_engine_and_a_drained_one_gets_none(make_proxy):
    proxy = make_proxy(engines=2)
    for engine in proxy.engines:
        engine.hold_streams()
        engine.let()
    busy = api_client.stream(proxy.endpoint, proxy.key(), BODY)
    next(busy)
    api_client.request_chat(proxy.endpoint, proxy.key(), BODY)
    assert [len(engine.seen) for engine in proxy.engines] == [1, 1]
    proxy.engines[0].let(5)
    list(busy)
    haproxy.set_state(proxy.paths.socket, 0, "drain")
    for _ in range(3):
        assert api_client.request_chat(proxy.endpoint, proxy.key(), BODY).status == 200
    assert [len(engine.seen) for engine in proxy.engines] == [1, 4]
    assert {s["name"]: s["status"] for s in haproxy.list_servers(proxy.paths.socket)} == {
        "engine0": "DRAIN",
        "engine1": "UP",
    }


def test_the_engine_does_not_go_on_for_a_client_that_has_gone(make_proxy):
    proxy = make_proxy()
    proxy.engines[0].pause_s = 2 * HANGS_S
    impatient = replace(proxy.endpoint, timeout_s=1.0)
    with pytest.raises(api_client.ApiError, match="timed out"):
        api_client.request_chat(impatient, proxy.key(), BODY)
    # HAProxy has hung up on it: an engine stops generating for that.
    assert until(lambda: haproxy.list_servers(proxy.paths.socket)[0]["requests"] == 0)


def test_health_needs_no_key_and_tells_up_from_down(make_proxy):
    proxy = make_proxy()
    assert api_client.call(proxy.endpoint, "GET", "/health", None).status == 200
    proxy.engines[0].shutdown()
    proxy.engines[0].server_close()
    reply = api_client.request_chat(proxy.endpoint, proxy.key(), BODY)
    assert reply.status == 503
    assert reply.json()["error"]["code"] == "engine_unavailable"
    assert until(lambda: api_client.call(proxy.endpoint, "GET", "/health", None).status == 503)


def test_another_certificate_than_the_installed_one_is_not_trusted(make_proxy):
    proxy = make_proxy()
    with pytest.raises(api_client.ApiError, match="another certificate"):
        api_client.connect(api_client.Endpoint("127.0.0.1", proxy.port, "0" * 64))


def test_what_speaks_no_tls_gets_no_answer_in_clear(make_proxy):
    proxy = make_proxy()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=HANGS_S) as plain:
        plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b"ok" not in plain.recv(1000)


def test_the_suite_passes_against_a_sound_service_and_says_what_it_skips(make_proxy):
    proxy = make_proxy()
    subject = checks.Subject(
        proxy.endpoint,
        proxy.key(),
        "tiny",
        ("tiny",),
        random_weights=True,
        reasons=True,
        tools=True,
    )
    found = {check["name"]: check["status"] for check in checks.run_checks(subject)}
    assert found.pop("known-answers") == "skip"
    assert set(found.values()) == {"ok"}


def test_the_suite_names_what_is_wrong(make_proxy):
    proxy = make_proxy()
    subject = checks.Subject(
        proxy.endpoint,
        "sk-wrong",
        "tiny",
        ("tiny",),
        random_weights=False,
        reasons=True,
        tools=True,
    )
    found = {check["name"]: check for check in checks.run_checks(subject)}
    assert found["tls"]["status"] == "ok"
    assert found["chat"]["status"] == "fail"
    assert "401" in found["chat"]["detail"]


def test_an_apply_and_the_timer_change_what_runs_one_after_the_other(tmp_path, monkeypatch):
    """Each waits for its own stamp, which the other would take from under it."""
    paths = Paths(tmp_path)
    paths.proxy.mkdir(parents=True)
    inside, overlaps = [], []

    def control(_verb, _unit):
        overlaps.append(len(inside))
        inside.append(1)
        paths.tls_pem.write_text(f"another, {len(overlaps)}")
        time.sleep(0.2)
        inside.pop()

    state = {"state": "active", "enabled": True, "load_state": "loaded"}
    told = lambda _socket: paths.proxy_stamp.read_text().split()[-1]  # noqa: E731
    monkeypatch.setattr(proxy_module.units, "converge", lambda _unit, *, check: check)
    monkeypatch.setattr(
        proxy_module.units, "read_states", lambda *names: dict.fromkeys(names, state)
    )
    monkeypatch.setattr(proxy_module.units, "control", control)
    monkeypatch.setattr(proxy_module.haproxy, "read_description", told)
    paths.proxy_stamp.write_text("description none")
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda _: proxy_module.converge(paths)["did"], range(2)))
    assert len(done) == 2
    assert overlaps == [0, 0]
    assert not paths.proxy_lock.exists()
