"""A web server that a test can make misbehave, and one that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Behaviour:
    """What a test sets, and what the server has seen."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cut_after: int | None = None  # bytes of a body, then the connection is closed
    cuts_left: int = 0
    stall_after: int | None = None  # bytes of a body, then silence
    stalls_left: int = 0
    statuses: list[int] = field(default_factory=list)  # answered first, one a request
    redirect_to: str | None = None
    rate: int | None = None  # bytes a second, for each connection
    token: str | None = None
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        # what lies in a buffer of ours counts as served and may never arrive: keep that small
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        b = self.server.behaviour
        with b.lock:
            b.requests.append((self.path, dict(self.headers)))
            status = b.statuses.pop(0) if b.statuses else None
        if status is not None:
            return self.refuse(status)
        if b.token and self.headers.get("Authorization") != f"Bearer {b.token}":
            return self.refuse(401)
        if b.redirect_to:
            self.send_response(302)
            self.send_header("Location", b.redirect_to + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        return self.answer(self.path.split("?")[0].lstrip("/"))

    def refuse(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def json(self, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, name: str) -> None:
        b = self.server.behaviour
        body = b.files.get(name)
        if body is None:
            return self.refuse(404)
        start = 0
        asked = self.headers.get("Range")
        if asked and b.ranges:
            start = int(asked.removeprefix("bytes=").split("-")[0])
            if start >= len(body):
                return self.refuse(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        return self.send_body(name, body[start:])

    def send_body(self, name: str, body: bytes) -> None:
        b = self.server.behaviour
        with b.lock:
            cut = b.cut_after if b.cuts_left > 0 and len(body) > (b.cut_after or 0) else None
            b.cuts_left -= cut is not None
            stall = b.stall_after if b.stalls_left > 0 else None
            b.stalls_left -= stall is not None
        sent = 0
        step = 16384
        try:
            while sent < len(body):
                part = body[sent : sent + step]
                if cut is not None and sent >= cut:
                    self.close_connection = True
                    return
                if stall is not None and sent >= stall:
                    self.close_connection = True
                    self.server.closing.wait(30)
                    return
                self.wfile.write(part)
                sent += len(part)
                with b.lock:
                    b.served[name] = b.served.get(name, 0) + len(part)
                if b.rate:
                    time.sleep(len(part) / b.rate)
        except OSError:
            self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, files: dict[str, bytes], handler: type[Handler] = Handler, host: str = "127.0.0.1"
    ) -> None:
        self.behaviour = Behaviour(files=files)
        self.closing = threading.Event()
        super().__init__((host, 0), handler)
        self.thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what these tests are about."""

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]}:{self.server_address[1]}"

    def stop(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()
        self.thread.join()


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubHandler(Handler):
    """Enough of the hub for huggingface_hub to list a repository and for us to fetch from it."""

    repository = "moonshotai/Kimi-Tiny"
    branch = "main"
    storage: str | None = None  # where large files are redirected

    def do_GET(self) -> None:
        b = self.server.behaviour
        with b.lock:
            b.requests.append((self.path, dict(self.headers)))
            status = b.statuses.pop(0) if b.statuses else None
        if status is not None:
            return self.refuse(status)
        if b.token and self.headers.get("Authorization") != f"Bearer {b.token}":
            return self.refuse(
                401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."}
            )
        return self.route(self.path.split("?")[0])

    def route(self, path: str) -> None:
        api = f"/api/models/{self.repository}/revision/"
        if path.startswith(api):
            if path.removeprefix(api) not in (self.branch, COMMIT):
                return self.refuse(404, {"X-Error-Code": "RevisionNotFound"})
            return self.json(self.info())
        prefix = f"/{self.repository}/resolve/{COMMIT}/"
        if path.startswith(prefix):
            name = path.removeprefix(prefix)
            if self.storage and name.endswith(".safetensors"):
                return self.refuse(302, {"Location": f"{self.storage}/{name}?signature=abc"})
            return self.answer(name)
        return self.refuse(404, {"X-Error-Code": "RepoNotFound"})

    def info(self) -> dict[str, Any]:
        siblings = []
        for name, body in self.server.behaviour.files.items():
            row: dict[str, Any] = {"rfilename": name, "size": len(body)}
            row["blobId"] = hashlib.sha1(
                b"blob %d\0" % len(body) + body, usedforsecurity=False
            ).hexdigest()
            if name.endswith(".safetensors"):
                digest = hashlib.sha256(body).hexdigest()
                row["lfs"] = {"sha256": digest, "size": len(body), "pointerSize": 134}
            siblings.append(row)
        return {"id": self.repository, "sha": COMMIT, "siblings": siblings, "tags": []}
