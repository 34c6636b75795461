"""Nobody closes the opened port without a key: the real HAProxy with the role's own defaults."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
from contextlib import ExitStack

import pytest
from waiting import HANGS_S, until

from kimi_prov.on_host.endpoint import api_client

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
# Seconds that a client may be silent here, and how much longer the engine thinks.
SILENT_S, THINKS_S = 1, 1.6


def silent(proxy, stack: ExitStack, source: str = "127.0.0.1", count: int = 1) -> list:
    """Connections that never say a word."""
    made = []
    for _ in range(count):
        end = stack.enter_context(socket.socket())
        end.settimeout(HANGS_S)
        end.bind((source, 0))
        # One that is over the limit may be reset already.
        end.connect_ex(("127.0.0.1", proxy.port))
        made.append(end)
    return made


def closed(end: socket.socket) -> bool:
    """Whether the proxy has ended it, without waiting."""
    end.setblocking(False)
    try:
        return end.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def curl(proxy, version: str, body: dict) -> str:
    """What curl prints of one chat, with the HTTP version that was spoken."""
    done = subprocess.run(
        [
            *("curl", "-sSkN", version, "-w", " HTTP/%{http_version}", "-H", "@-"),
            *("-d", json.dumps(body), f"https://127.0.0.1:{proxy.port}/v1/chat/completions"),
        ],
        input=f"Authorization: Bearer {proxy.key()}\nContent-Type: application/json\n",
        capture_output=True,
        text=True,
        timeout=HANGS_S * 3,
        check=True,
    )
    return done.stdout


def test_a_connection_that_never_says_hello_ends_and_is_seen(make_proxy):
    proxy = make_proxy(proxy_client_timeout_s=SILENT_S)
    with ExitStack() as stack:
        (end,) = silent(proxy, stack)
        assert end.recv(1) == b""
    assert until(lambda: "127.0.0.1" in proxy.log), proxy.log


@pytest.mark.parametrize(("version", "spoken"), [("--http1.1", "1.1"), ("--http2", "2")])
def test_an_answer_and_a_stream_may_pause_longer_than_a_client_may(make_proxy, version, spoken):
    proxy = make_proxy(proxy_client_timeout_s=SILENT_S)
    proxy.engines[0].pause_s = THINKS_S
    assert curl(proxy, version, BODY).endswith(f"}} HTTP/{spoken}")
    streamed = curl(proxy, version, {**BODY, "stream": True})
    assert streamed.count("data: ") == 6
    assert streamed.endswith(f"[DONE]\n\n HTTP/{spoken}")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_a_pause_longer_than_the_default_limit_arrives(make_proxy, version):
    proxy = make_proxy()
    proxy.engines[0].pause_s = 40
    with ExitStack() as stack:
        (end,) = silent(proxy, stack)
        end.settimeout(39)
        assert curl(proxy, version, BODY).startswith('{"choices"')
        assert end.recv(1) == b""


def test_one_source_cannot_take_the_connections_of_the_others(make_proxy):
    proxy = make_proxy(proxy_max_connections_per_source=8)
    with ExitStack() as stack:
        held = silent(proxy, stack, "127.0.0.2", 20)
        assert until(lambda: sum(map(closed, held)) == 12)
        assert api_client.request_chat(proxy.endpoint, proxy.key(), BODY).status == 200
        # Who leaves makes room.
        for end in held:
            end.close()
        assert until(lambda: not closed(silent(proxy, stack, "127.0.0.2")[0]))


def test_four_thousand_silent_connections_do_not_keep_a_client_out(make_proxy):
    wanted = 2 * 4096
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, wanted), hard), hard))
    proxy = make_proxy()
    with ExitStack() as stack:
        silent(proxy, stack, "127.0.0.2", 4096)
        assert api_client.request_chat(proxy.endpoint, proxy.key(), BODY).status == 200


def test_other_methods_do_not_reach_the_engine(make_proxy):
    proxy = make_proxy()
    for method in ("TRACE", "PUT", "PATCH", "HEAD", "PROPFIND"):
        reply = api_client.call(proxy.endpoint, method, "/v1/models", proxy.key())
        assert reply.status == 405, method
        assert reply.headers["allow"] == "GET, POST, DELETE, OPTIONS"
        assert proxy.engines[0].seen == []


def test_no_other_protocol_is_spoken_through_the_port(make_proxy):
    proxy = make_proxy()
    for protocol in ("h2c", "websocket"):
        connection = api_client.connect(proxy.endpoint)
        connection.request(
            "GET",
            "/v1/models",
            headers={
                "Authorization": f"Bearer {proxy.key()}",
                "Connection": "Upgrade, HTTP2-Settings",
                "Upgrade": protocol,
                "HTTP2-Settings": "AAMAAABkAAQAAP__",
                "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            },
        )
        assert connection.getresponse().status == 200, proxy.log
        connection.close()
    assert len(proxy.engines[0].seen) == 2
    for _, headers in proxy.engines[0].seen:
        assert not {name.lower() for name in headers} & {"upgrade", "http2-settings"}
