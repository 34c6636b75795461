"""A stand-in for an engine: a process on a lab host that answers each chat with the same words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from machines import kimi_prov

if TYPE_CHECKING:
    from collections.abc import Iterable

    from machines import Lab

ENGINE = r"""
import http.server, json
MODEL, WORDS = "kimi-k2-lab", ["A", " stand-in", " says", " so."]
MODELS = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
USAGE = {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}
def made(kind, **more):
    return {"id": "1", "object": kind, "created": 1, "model": MODEL, **more}
def choice(**more):
    return [{"index": 0, "finish_reason": None, **more}]
WHOLE = made("chat.completion", usage=USAGE, choices=choice(
    finish_reason="length", message={"role": "assistant", "content": "".join(WORDS)}))
def pieces():
    for word in WORDS:
        yield made("chat.completion.chunk", choices=choice(delta={"content": word}))
    yield made("chat.completion.chunk", choices=choice(delta={}, finish_reason="length"))
    yield made("chat.completion.chunk", choices=[], usage=USAGE)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def answer(self, found):
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for text in [*map(json.dumps, pieces()), "[DONE]"]:
            event = b"data: " + text.encode() + b"\n\n"
            self.wfile.write(b"%x\r\n" % len(event) + event + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")
    def do_GET(self):
        self.answer(MODELS if self.path == "/v1/models" else {})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("stream"):
            self.stream()
        else:
            self.answer(WHOLE)
http.server.ThreadingHTTPServer(("127.0.0.1", 8001), Handler).serve_forever()
"""


def stand_ins(lab: Lab, names: Iterable[str]) -> None:
    """Answer where the engines of these hosts would."""
    planned = kimi_prov("plan", lab.inventory, "--format", "json")
    plans = json.loads(planned.stdout)["hosts"]
    for name in names:
        # The role `serve` writes it, and was left out with the engine.
        lab.hosts[name].ssh(f"cat > /etc/kimi/plan.json <<'EOF'\n{json.dumps(plans[name])}\nEOF")
        lab.hosts[name].ssh(f"cat > /usr/local/lib/engine.py <<'EOF'\n{ENGINE}\nEOF")
        lab.hosts[name].ssh(
            "systemd-run --unit=engine -p User=kimi python3 /usr/local/lib/engine.py"
        )
