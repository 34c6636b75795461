"""A stand-in for an engine's API: it streams as many words as it is asked, and counts as vLLM does.

It computes nothing. What it counts stands in /metrics under vLLM's names.
"""

from __future__ import annotations

import http.server
import json
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_S, NEXT_S = 0.01, 0.002


class Counts:
    """What it has done, and is doing."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = 0
        self.asked: list[dict[str, Any]] = []

    def text(self) -> str:
        """Give /metrics."""
        head = '{engine="0",model_name="kimi"}'
        tokens = 100 * len(self.asked)
        rows = {
            "num_requests_running": self.running,
            "num_requests_waiting": max(0, self.running - 2),
            "kv_cache_usage_perc": min(1.0, 0.125 * self.running),
            "prefix_cache_queries_total": tokens,
            "prefix_cache_hits_total": tokens // 4,
            "num_preemptions_total": len(self.asked) // 8,
        }
        return "".join(f"vllm:{name}{head} {float(value)}\n" for name, value in rows.items())


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    counts: Counts

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(200, self.counts.text().encode(), "text/plain")
        else:
            self._send(404, b"{}", "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.endswith("completions"):
            self._send(404, b"{}", "application/json")
            return
        with self.counts.lock:
            self.counts.asked.append({"path": self.path, **body})
            self.counts.running += 1
        try:
            self._stream(body)
        finally:
            with self.counts.lock:
                self.counts.running -= 1

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        chat = self.path.endswith("chat/completions")
        words = int(body.get("max_completion_tokens") or body.get("max_tokens") or 1)
        time.sleep(FIRST_S)
        for number in range(words):
            piece = {"delta": {"content": "a "}} if chat else {"text": "a "}
            end = "length" if number == words - 1 else None
            self._chunk({"choices": [{"index": 0, "finish_reason": end, **piece}]})
            time.sleep(NEXT_S)
        if not (body.get("stream_options") or {}).get("include_usage"):
            self.wfile.write(b"data: [DONE]\n\n")
            return
        usage = {"prompt_tokens": 100, "completion_tokens": words, "total_tokens": 100 + words}
        self._chunk({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _chunk(self, document: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())
        self.wfile.flush()

    def _send(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving() -> Iterator[tuple[int, Counts]]:
    """Serve on a port of the loopback; give it, and what is counted."""
    counts = Counts()
    handler = type("StreamingHandler", (_Handler,), {"counts": counts})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], counts
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
