"""Requests that no client of good will sends: without a key, or beside /v1/, none gets in."""

from __future__ import annotations

import socket
import ssl

from kimi_prov.on_host.keys import publish

PATHS = (
    "/metrics",
    "//metrics",
    "///v1/../metrics",
    "/v1/../metrics",
    "/v1/./../metrics",
    "/v1/..",
    "/v1/%2e%2e/metrics",
    "/v1/%2E%2E/metrics",
    "/v1/.%2e/metrics",
    "/v1/%2e./metrics",
    "/v1/..%2fmetrics",
    "/v1/..%5cmetrics",
    "/v1/..\\metrics",
    "/v1/..;/metrics",
    "/v1/x/../../metrics",
    "/v1//../metrics",
    "/v1/%252e%252e/metrics/..",
    "/V1/models",
    "/%76%31/models",
    "/v1%2fmodels",
    "/v1\\models",
    "/v1;/models",
    "/v1?/../metrics",
    "/v1#/../metrics",
    "http://other.example/metrics",
    "http://other.example/v1/../metrics",
    "*",
    "/health/../metrics",
)
# What stands between `POST /v1/models HTTP/1.1`, `Host` and the end: a second request in the body
# of the first, for whoever measures it otherwise than HAProxy.
HIDDEN = "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"
SMUGGLED = (
    f"Content-Length: 0\r\nContent-Length: {len(HIDDEN)}\r\n\r\n{HIDDEN}",
    f"Content-Length: 0, {len(HIDDEN)}\r\n\r\n{HIDDEN}",
    f"Content-Length: +0\r\n\r\n{HIDDEN}",
    f"Content-Length: 0x0\r\n\r\n{HIDDEN}",
    f"Content-Length: -1\r\n\r\n{HIDDEN}",
    f"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{HIDDEN}",
    f"Transfer-Encoding: xchunked\r\nContent-Length: 0\r\n\r\n{HIDDEN}",
    f"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n{HIDDEN}",
    f"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{HIDDEN}",
    f"X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: {len(HIDDEN)}\r\n\r\n{HIDDEN}",
    f"Transfer-Encoding: chunked\r\n\r\n0;x\n\r\n{HIDDEN}",
)


def exchange(proxy, request: str) -> bytes:
    """Send bytes as they are; what comes until the proxy closes or has nothing more to say."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", proxy.port), 5) as plain,
        context.wrap_socket(plain) as stream,
    ):
        stream.sendall(request.encode("latin-1"))
        answer = b""
        stream.settimeout(5)
        try:
            while piece := stream.recv(65536):
                answer += piece
        except (TimeoutError, ConnectionError, ssl.SSLError):
            pass
    return answer


def statuses(answer: bytes) -> list[int]:
    return [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def test_no_path_leads_around_the_api(make_proxy):
    proxy = make_proxy()
    for path in PATHS:
        for key, expected in ((proxy.key(), {400, 404}), (None, {400, 401})):
            lines = [f"GET {path} HTTP/1.1", "Host: h", "Connection: close"]
            lines += [f"Authorization: Bearer {key}"] if key else []
            found = statuses(exchange(proxy, "\r\n".join([*lines, "", ""])))
            assert len(found) == 1, path
            assert found[0] in expected, path
    assert proxy.engines[0].seen == []


def test_no_request_hides_in_another(make_proxy):
    proxy = make_proxy()
    for rest in SMUGGLED:
        head = f"POST /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {proxy.key()}\r\n"
        exchange(proxy, head + "Connection: close\r\n" + rest)
    assert {path for path, _ in proxy.engines[0].seen} <= {"/v1/models"}


def test_odd_authorization_headers_open_nothing(make_proxy):
    proxy = make_proxy()
    key = proxy.key()
    odd = (
        "Authorization: Bearer",
        "Authorization: Bearer ",
        f"Authorization: {key}",
        f"Authorization: Bearer{key}",
        f"Authorization: Bearer  {key[:-1]}",
        f"Authorization: Bearer {key}x",
        f"Authorization: Bearer {key},{key}",
        f"Authorization: Bearer x {key}",
        f"Authorization: Basic Bearer {key}",
        f"Authorization: Bearer {publish.hash_key(key)}",
        "Authorization: Bearer \x00",
        f"Authorization: Bearer {'a' * 9000}",
        f"X-Authorization: Bearer {key}",
        f"Authorization : Bearer {key}",
        f"Authorization: Bearer wrong\r\nX: y\r\n Bearer {key}",
    )
    for line in odd:
        request = f"GET /v1/models HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{line}\r\n\r\n"
        found = statuses(exchange(proxy, request))
        assert set(found) <= {400, 401}, line
    assert proxy.engines[0].seen == []
