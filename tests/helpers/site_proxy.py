"""A site's forward proxy, for whoever knows its password; it keeps a list of what was asked."""

from __future__ import annotations

import base64
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from types import TracebackType

_CHUNK = 1 << 16
_PATIENCE_S = 60.0


class SiteProxy:
    """Listens on `address` while it is entered.

    `asked`: `METHOD HOST:PORT` of each request that was let through, in order. `refused`: how many
    came without the password.
    """

    def __init__(self, address: str, user: str, password: str) -> None:
        self.asked: list[str] = []
        self.refused = 0
        self._login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        kind = type("Server", (ThreadingHTTPServer,), {"address_family": family})
        self._server = kind((address, 0), self._handler())
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def hosts(self) -> set[str]:
        """Names that were asked for."""
        return {row.split()[1].rpartition(":")[0] for row in self.asked}

    def _admits(self, method: str, target: str, login: str | None) -> bool:
        if login != self._login:
            self.refused += 1
            return False
        self.asked.append(f"{method} {target}")
        return True

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Keep the test's output clean."""

            def do_CONNECT(self) -> None:
                host, _, port = self.path.rpartition(":")
                if self._enters("CONNECT", self.path):
                    self._pass_on(host, int(port), b"", b"HTTP/1.1 200 Connected\r\n\r\n")

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                port = parts.port or 80
                if self._enters("GET", f"{parts.hostname}:{port}"):
                    path = parts.path + (f"?{parts.query}" if parts.query else "")
                    kept = [(n, v) for n, v in self.headers.items() if not n.startswith("Proxy-")]
                    kept = [(n, v) for n, v in kept if n.lower() != "connection"]
                    lines = [f"GET {path} HTTP/1.1", *(f"{n}: {v}" for n, v in kept)]
                    request = "\r\n".join([*lines, "Connection: close", "", ""]).encode()
                    self._pass_on(str(parts.hostname), port, request, b"")

            def _enters(self, method: str, target: str) -> bool:
                if proxy._admits(method, target, self.headers.get("Proxy-Authorization")):
                    return True
                self.send_response(407)
                self.send_header("Proxy-Authenticate", 'Basic realm="site"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return False

            def _pass_on(self, host: str, port: int, request: bytes, answer: bytes) -> None:
                self.close_connection = True
                try:
                    with socket.create_connection((host, port), _PATIENCE_S) as there:
                        there.sendall(request)
                        self.connection.sendall(answer)
                        _both_ways(self.connection, there)
                except OSError:
                    return

        return Handler


def _both_ways(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes on until one side ends."""
    ways = {one: other, other: one}
    while True:
        ready, _, _ = select.select(list(ways), [], [], _PATIENCE_S)
        if not ready:
            return
        for source in ready:
            data = source.recv(_CHUNK)
            if not data:
                return
            ways[source].sendall(data)
