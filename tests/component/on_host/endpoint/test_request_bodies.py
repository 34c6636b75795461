"""The API's port holds a request's body to the planned size, in the real HAProxy."""

from __future__ import annotations

import json
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest
from gateway_site import Site
from waiting import until

if TYPE_CHECKING:
    from running_proxy import Proxy

MOST = 2000
CHAT = "/v1/chat/completions"


def exchange(proxy: Proxy, key: str, length: int | str, body: bytes, path: str = CHAT) -> bytes:
    """Send a request of this length, or what of its body is at hand; return the answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    head = (
        f"POST {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )
    with (
        socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as raw,
        context.wrap_socket(raw) as stream,
    ):
        stream.sendall(head.encode() + body)
        answer = b""
        while data := stream.recv(65536):
            answer += data
    return answer


def padded(size: int) -> bytes:
    """A small question of this many bytes."""
    body = json.dumps({"model": "tiny", "messages": []}).encode()
    return body + b" " * (size - len(body))


def error_of(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 "), head
    error: dict[str, Any] = json.loads(body)["error"]
    return error


def test_a_body_above_the_planned_size_is_refused_with_both_figures(make_proxy: Any) -> None:
    proxy = make_proxy(request_body_max_bytes=MOST)
    (engine,) = proxy.engines
    assert exchange(proxy, proxy.key(), MOST, padded(MOST)).startswith(b"HTTP/1.1 200 ")
    assert len(engine.seen) == 1
    # Refused by its head alone: none of it is read.
    error = error_of(exchange(proxy, proxy.key(), MOST + 1, b""))
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_too_large")
    assert f"{MOST + 1} bytes" in error["message"]
    assert f"the most is {MOST}" in error["message"]
    assert len(engine.seen) == 1
    # The proxy writes its log a moment later.
    assert until(lambda: f"POST {CHAT} 413" in proxy.log)


@pytest.mark.parametrize("length", [2**31 + 1, 2**32 + 1, 2**63 + 1, 10**30])
def test_a_length_that_overflows_is_not_small(make_proxy: Any, length: int) -> None:
    proxy = make_proxy(request_body_max_bytes=MOST)
    answer = exchange(proxy, proxy.key(), length, b"{}")
    # HAProxy itself refuses what no file can have.
    assert answer[:13] in (b"HTTP/1.1 413 ", b"HTTP/1.1 400 ")
    assert not proxy.engines[0].seen


def test_who_has_no_key_learns_no_size(make_proxy: Any) -> None:
    proxy = make_proxy(request_body_max_bytes=MOST)
    assert exchange(proxy, "wrong", MOST + 1, b"").startswith(b"HTTP/1.1 401 ")


def test_another_size_counts_with_a_reload(make_proxy: Any) -> None:
    proxy = make_proxy(request_body_max_bytes=MOST)
    proxy.request_body_max_bytes = MOST - 1
    proxy.render()
    proxy.reload()
    error_of(exchange(proxy, proxy.key(), MOST, b""))


def test_a_gateway_holds_it_before_it_asks_a_machine(make_proxy: Any) -> None:
    site = Site(make_proxy, 2)
    site.gateway.request_body_max_bytes = MOST
    site.gateway.render()
    site.gateway.reload()
    error_of(exchange(site.gateway, site.client, MOST + 1, b""))
    assert not [host for host in site.hosts.values() if host.engines[0].seen]


def test_a_machine_that_sleeps_is_not_woken_by_it(make_proxy: Any) -> None:
    proxy = make_proxy(wake="refuse", request_body_max_bytes=MOST)
    proxy.paths.rest_map.write_text("wake asleep\nstate asleep\n")
    proxy.reload()
    error_of(exchange(proxy, proxy.key(), MOST + 1, b""))
