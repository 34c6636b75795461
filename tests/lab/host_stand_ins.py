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
BODY = json.dumps({
    "id": "1", "object": "chat.completion", "created": 1, "model": "kimi-k2-lab",
    "choices": [{"index": 0, "finish_reason": "length",
                 "message": {"role": "assistant", "content": "A stand-in says so."}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6},
}).encode()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(b"{}")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(BODY)
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
