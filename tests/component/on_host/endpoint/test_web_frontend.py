"""The page's frontend in the real HAProxy, with a stand-in page behind it."""

from __future__ import annotations

import base64
import hashlib
import http.client
import http.server
import json
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

UPLOAD = 1000
WRONG = 3


class Page(http.server.ThreadingHTTPServer):
    """Stands in for the page: logs in who says so, and takes a web socket."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.seen: list[tuple[str, dict[str, str]]] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A health check hangs up as soon as it knows enough."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Page

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, status: int) -> None:
        body = b'{"status": true}'
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path != "/health":
            self.server.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        if self.headers.get("Upgrade") == "websocket":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()  # noqa: S324
            self.send_header("Sec-WebSocket-Accept", accept)
            self.end_headers()
            return
        self._answer(200)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        self.server.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        self._answer(400 if body.get("password") == "wrong" else 200)


@pytest.fixture
def served(make_proxy: Any) -> Iterator[tuple[Any, Page]]:
    """A proxy with a page behind it."""
    proxy = make_proxy(upload_max_bytes=UPLOAD, proxy_web_logins=WRONG)
    page = Page(proxy.web["backend_port"])
    assert until(lambda: ask(proxy, "GET", "/")[0] == 200)
    page.seen.clear()
    yield proxy, page
    page.shutdown()
    page.server_close()


def ask(
    proxy: Any,
    method: str,
    path: str,
    body: bytes | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    """Ask the page's port; underscores of a header's name are hyphens."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", proxy.web["port"], context=context)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    content = b"" if answer.status == 101 else answer.read()
    connection.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, content


def login(proxy: Any, password: str, name: str = "signin") -> int:
    body = json.dumps({"password": password}).encode()
    return ask(proxy, "POST", f"/api/v1/auths/{name}", body)[0]


def test_the_page_is_reached_with_headers_that_browsers_hold_it_to(served: Any) -> None:
    proxy, page = served
    status, headers, _ = ask(proxy, "GET", "/c/1", X_Forwarded_For="6.6.6.6")
    assert status == 200
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "object-src 'none'" in headers["content-security-policy"]
    assert "server" not in headers
    # Nobody trusts a self-signed certificate: a browser that is bound to TLS would be locked out.
    assert "strict-transport-security" not in headers
    [(path, sent)] = page.seen
    assert path == "/c/1"
    assert sent["x-forwarded-proto"] == "https"
    assert sent["x-forwarded-for"] == "127.0.0.1"


def test_a_trusted_certificate_binds_browsers_to_tls(served: Any) -> None:
    proxy, _ = served
    proxy.stop()
    proxy.tls_mode = "files"
    proxy.start()
    assert until(lambda: ask(proxy, "GET", "/")[0] == 200)
    assert "max-age" in ask(proxy, "GET", "/")[1]["strict-transport-security"]


def test_wrong_logins_of_a_source_are_limited_and_right_ones_are_not(served: Any) -> None:
    proxy, _ = served
    assert [login(proxy, "right") for _ in range(WRONG + 3)] == [200] * (WRONG + 3)
    assert [login(proxy, "wrong") for _ in range(WRONG + 1)] == [400] * (WRONG + 1)
    assert login(proxy, "wrong") == 429
    assert login(proxy, "right") == 429
    assert login(proxy, "wrong", "sign%69n") == 429
    assert ask(proxy, "GET", "/")[0] == 200


def test_a_login_that_is_written_otherwise_counts_too(served: Any) -> None:
    proxy, _ = served
    names = ["sign%69n", "s%69gnin?x=1", "sign%69n", "signin"]
    assert [login(proxy, "wrong", name) for name in names] == [400] * (WRONG + 1)
    assert login(proxy, "wrong") == 429


def test_an_upload_is_bounded_and_says_its_length(served: Any) -> None:
    proxy, page = served
    assert ask(proxy, "POST", "/api/v1/files/", b"{}" + b" " * (UPLOAD - 2))[0] == 200
    # The head alone decides; a body would meet a connection that is closed already.
    assert ask(proxy, "POST", "/api/v1/files/", Content_Length=str(UPLOAD + 1))[0] == 413
    assert ask(proxy, "POST", "/api/v1/files/", Content_Length=str(2**32 + 1))[0] == 413
    assert ask(proxy, "POST", "/api/v1/files/", Transfer_Encoding="chunked")[0] == 411
    assert [path for path, _ in page.seen] == ["/api/v1/files/"]


def test_web_sockets_are_the_page_s_alone(served: Any) -> None:
    proxy, page = served
    host = f"127.0.0.1:{proxy.web['port']}"
    upgrade = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec_WebSocket_Version": "13",
    }
    own = {**upgrade, "Origin": f"https://{host}"}
    assert ask(proxy, "GET", "/ws/socket.io/", **own)[0] == 101
    assert ask(proxy, "GET", "/ws/socket.io/", **upgrade, Origin="https://elsewhere.test")[0] == 403
    assert ask(proxy, "GET", "/api/other", **own)[0] == 200
    assert "upgrade" not in page.seen[-1][1]


def test_another_site_may_not_ask_with_a_visitor_s_session(served: Any) -> None:
    proxy, page = served
    assert ask(proxy, "POST", "/api/x", b"{}", Origin="https://elsewhere.test")[0] == 403
    assert ask(proxy, "POST", "/api/x", b"{}", Origin="null")[0] == 403
    host = f"127.0.0.1:{proxy.web['port']}"
    assert ask(proxy, "POST", "/api/x", b"{}", Origin=f"https://{host}")[0] == 200
    assert len(page.seen) == 1


def test_a_page_that_is_down_is_told_in_a_sentence_and_comes_back(served: Any) -> None:
    proxy, page = served
    page.shutdown()
    page.server_close()
    assert until(lambda: ask(proxy, "GET", "/")[0] == 503)
    _, headers, content = ask(proxy, "GET", "/")
    assert headers["content-type"].startswith("text/html")
    assert b"comes back by itself" in content
    assert b'http-equiv="refresh"' in content
    again = Page(proxy.web["backend_port"])
    assert until(lambda: ask(proxy, "GET", "/")[0] == 200)
    again.shutdown()
    again.server_close()


def test_the_page_s_own_way_to_the_engine_asks_for_a_key(served: Any) -> None:
    proxy, _ = served
    connection = http.client.HTTPConnection("127.0.0.1", proxy.web["api_port"])
    connection.request("GET", "/v1/models")
    assert connection.getresponse().read().find(b"invalid_api_key") > 0
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {proxy.key()}"})
    answer = connection.getresponse()
    assert answer.status == 200
    answer.read()
    connection.close()


def test_what_is_said_is_in_no_log(served: Any) -> None:
    proxy, _ = served
    ask(proxy, "POST", "/api/chat/completions?q=secret-q", b'{"content": "secret-body"}')
    assert until(lambda: "/api/chat/completions" in proxy.log)
    assert "secret" not in proxy.log
