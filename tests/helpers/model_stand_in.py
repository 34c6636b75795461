"""A server that speaks a model's API over TLS and computes nothing: it knows what it is asked."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.endpoint import checks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Handler(http.server.BaseHTTPRequestHandler):
    key: str
    model: str
    answer: str

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self._allowed():
            found = {"data": [{"id": self.model}]} if self.path == "/v1/models" else None
            self._send(200 if found else 404, found or {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        if body.get("stream"):
            self._stream()
            return
        question = body["messages"][0]["content"]
        known = dict(checks.KNOWN)
        message: dict[str, Any] = {
            "content": known.get(question, self.answer),
            "reasoning": "I think.",
        }
        if body.get("tools"):
            call = {"name": "get_temperature", "arguments": json.dumps({"city": "Oslo"})}
            message["tool_calls"] = [{"function": call}]
        self._send(200, {"choices": [{"message": message}], "usage": {"completion_tokens": 1}})

    def _allowed(self) -> bool:
        if self.headers["Authorization"] == f"Bearer {self.key}":
            return True
        self._send(401, {"error": {"code": "invalid_api_key"}})
        return False

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for _ in range(3):
            self.wfile.write(b'data: {"choices": [{}]}\n\n')
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, code: int, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(folder: Path, pem: str, *, key: str, model: str, answer: str = "yes") -> Iterator[int]:
    """Serve with this certificate and key of TLS; give the port.

    `answer`: to every question but those with known answers.
    """
    file = folder / "model.pem"
    file.write_text(pem)
    handler = type("ModelHandler", (_Handler,), {"key": key, "model": model, "answer": answer})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
