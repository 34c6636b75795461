"""The real HAProxy on the loopback, with the role's own configuration and a stand-in engine."""

from __future__ import annotations

import http.server
import json
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import yaml
from ports import free_port
from waiting import HANGS_S, until

from kimi_prov.contract import key_rules
from kimi_prov.contract import paths as layout
from kimi_prov.contract.gateways import WEB_UI_NAME
from kimi_prov.on_host.endpoint import haproxy, tls
from kimi_prov.on_host.endpoint.api_client import Endpoint
from kimi_prov.packaging.resources import find_root

if TYPE_CHECKING:
    from kimi_prov.contract.paths import Paths

DEFAULTS = yaml.safe_load((find_root() / "roles/proxy/defaults/main.yml").read_text())
# A server that is lost or back is found ten times as soon as on a machine.
CHECKS = "200ms"
STAMP = "0123456789abcdef-fedcba9876543210"


def listens(port: int) -> bool:
    """Whether somebody listens on a TCP port, without asking there."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    text = Path(f"/proc/{pid}/status").read_text()
    (caught,) = re.findall(r"^SigCgt:\s+([0-9a-f]+)$", text, re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


METRICS = """vllm:num_requests_running 1.0
vllm:num_requests_waiting 0.0
vllm:generation_tokens_total 5.0
"""


class Engine(http.server.ThreadingHTTPServer):
    """Answers as an engine would, a stream piece by piece, and remembers what reached it."""

    daemon_threads = True
    # As an engine's: with Python's 5 a connection more is tried again after seconds.
    request_queue_size = 2048

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, dict[str, str]]] = []
        # A stream gives its pieces one at a time where a test holds it.
        self.held = False
        self.pieces = threading.Semaphore(0)
        # Seconds before an answer, or in the middle of a stream.
        self.pause_s = 0.0
        # While it hangs /health is answered, and no chat.
        self.hangs = False
        # What a chat is answered with.
        self.status = 200
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def hold_streams(self) -> None:
        """From now on a piece comes when a test lets it."""
        self.held = True

    def let(self, pieces: int = 1) -> None:
        """Let the next pieces of a stream come."""
        self.pieces.release(pieces)

    def handle_error(self, request, client_address) -> None:
        """A health check hangs up as soon as it knows enough."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Engine

    def log_message(self, *args) -> None:
        pass

    def _json(self, status: int, value: object) -> None:
        self._whole(status, "application/json", json.dumps(value).encode())

    def _text(self, text: str) -> None:
        self._whole(200, "text/plain", text.encode())

    def _whole(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._json(200, {})
            return
        self.server.seen.append((self.path, dict(self.headers)))
        if self.path == "/metrics" and self.server.hangs:
            self._text(METRICS)
            return
        self._json(200, {"object": "list", "data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers)))
        while self.server.hangs:
            time.sleep(0.05)
        if self.path == "/v1/x":
            self._json(404, {"detail": "Not Found"})
            return
        if body.get("stream"):
            self._stream()
            return
        time.sleep(self.server.pause_s)
        self._json(self.server.status, answer_to(body))

    def do_OPTIONS(self) -> None:
        self._json(405, {})

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pieces = [json.dumps({"choices": [{"delta": {"content": str(n)}}]}) for n in range(5)]
        for number, piece in enumerate([*pieces, "[DONE]"]):
            if self.server.held:
                self.server.pieces.acquire(timeout=HANGS_S)
            if number == 2:
                time.sleep(self.server.pause_s)
            data = f"data: {piece}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def answer_to(body: dict) -> dict:
    message: dict = {"role": "assistant", "content": "hello", "reasoning": "it greets"}
    if "tools" in body:
        call = {"name": "get_temperature", "arguments": '{"city": "Oslo"}'}
        message["tool_calls"] = [{"id": "c1", "type": "function", "function": call}]
    return {"choices": [{"message": message}], "usage": {"completion_tokens": 1}}


@dataclass
class Proxy:
    """A running proxy and everything a test may turn."""

    paths: Paths
    port: int
    engines: list[Engine]
    config: Path
    process: subprocess.Popen | None = None
    networks: list[str] = field(default_factory=list)
    # The page behind the same proxy, where a test has one.
    web: dict[str, Any] | None = None
    # Ports of the metrics, where a test has some.
    metrics: dict[str, Any] | None = None
    tls_mode: str = "self-signed"
    request_body_max_bytes: int = 64 << 20
    options: dict[str, int] = field(default_factory=dict)
    # The plan's, where it is a gateway; and the gateways before it.
    gateway: dict[str, Any] | None = None
    gateways: list[dict[str, str]] | None = None
    # As planned: whether it rests by itself, and what wakes it.
    rest: dict[str, object] = field(default_factory=lambda: {"idle": None, "wake": "off"})
    # Between two checks of a server behind it.
    checks: str = CHECKS

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            "127.0.0.1", self.port, tls.compute_fingerprint(self.paths.tls_pem.read_text()), HANGS_S
        )

    def render(self) -> None:
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(find_root() / "roles/proxy/templates"),
            trim_blocks=True,
            keep_trailing_newline=True,
            undefined=jinja2.StrictUndefined,
            autoescape=False,  # noqa: S701 - a configuration file, no page
        )
        plan = {
            "paths": {
                "key_map": str(self.paths.key_map),
                "key_rules": str(self.paths.key_rules),
                "metrics_key_map": str(self.paths.metrics_key_map),
                "rest_map": str(self.paths.rest_map),
                "machine_key": str(self.paths.machine_key),
                "wake_socket": str(self.paths.wake_socket),
                "proxy_socket": str(self.paths.socket),
                "tls_pem": str(self.paths.tls_pem),
                "proxy": str(self.paths.proxy),
                "hosts": str(self.paths.hosts),
                "key_limits": str(self.paths.key_limits),
                "usage_recent_socket": str(self.paths.usage_recent_socket),
                "usage_limits_socket": str(self.paths.usage_limits_socket),
                "page_pem": str(self.paths.page_pem),
            },
            "proxy": {
                "port": self.port,
                "allowed_networks": self.networks,
                "request_body_max_bytes": self.request_body_max_bytes,
                "backends": [{"index": n, "port": e.port} for n, e in enumerate(self.engines)],
                "tls": {"mode": self.tls_mode, "trusted": self.tls_mode != "self-signed"},
            },
            "web": self.web,
            "metrics": self.metrics,
            "rest": self.rest,
            "usage": {"waits_s": key_rules.WAITS_S},
            "model": {"served_names": ["tiny", "it's 1%"], "context": 4096},
            **({"gateway": self.gateway} if self.gateway else {}),
            **({"gateways": self.gateways} if self.gateways else {}),
        }
        if self.engines or self.gateway:
            program = environment.get_template("limits.lua.j2").render(kimi_plan=plan)
            self.paths.key_limits.write_text(program)
        text = environment.get_template("haproxy.cfg.j2").render(
            kimi_plan=plan,
            kimi_facts={"network": {"addresses": ["10.0.0.1"]}},
            **{**DEFAULTS, "proxy_drain_s": 5, **self.options},
        )
        often = f"inter {self.checks} downinter {self.checks}"
        text = re.sub(r"\binter 2s downinter [12]s", often, text)
        self.config.write_text(text)

    def start(self) -> None:
        self.render()
        self.stamp.write_text(f"global\n    description {STAMP}\n")
        files = ["-f", str(self.config), "-f", str(self.stamp)]
        log = self.config.with_name("log").open("w")
        master = ["-S", str(self.paths.locate(layout.PROXY_MASTER))]
        self.process = subprocess.Popen(
            ["haproxy", "-W", "-db", *master, *files], stdout=log, stderr=log
        )
        log.close()
        # It makes its socket before it opens the port; a knock would stand in its log.
        port = self.port if self.engines or self.gateway else (self.metrics or {})["port"]
        ended = self.process.poll
        assert until(
            lambda: ended() is not None or (self.paths.socket.exists() and listens(port)),
            every_s=0.01,
        )
        assert ended() is None, self.log

    def reload(self) -> None:
        """As systemd does it: the old worker ends what it has."""
        # While the master starts it ignores the signal; systemd waits until it is ready.
        assert until(lambda: catches(self.process.pid, signal.SIGUSR2)), self.log
        told = f"{STAMP}-again"
        self.stamp.write_text(f"global\n    description {told}\n")
        self.process.send_signal(signal.SIGUSR2)
        assert until(lambda: haproxy.read_description(self.paths.socket) == told), self.log

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(timeout=HANGS_S)

    @property
    def stamp(self) -> Path:
        return self.paths.proxy_stamp

    @property
    def log(self) -> str:
        return self.config.with_name("log").read_text()

    def key(self) -> str:
        return self.paths.verify_key.read_text().strip()


def page_of(upload_max_bytes: int, doors: list[str] | None) -> dict[str, Any]:
    ports = {name: free_port() for name in ("port", "backend_port", "api_port")}
    own = {"gateways": doors} if doors else {}
    return {**ports, "upload_max_bytes": upload_max_bytes, **own}


def page_there(first: Proxy) -> dict[str, Any]:
    """Where the page is, as the plan of the other gateway has it."""
    assert first.web
    return {
        "port": free_port(),
        "first": {"server": "gw1", "address": "127.0.0.1", "port": first.web["port"]},
        "name": WEB_UI_NAME,
    }


def shown_metrics() -> dict[str, Any]:
    return {"port": free_port(), "node_port": free_port(), "allowed_networks": []}


def behind(name: str, host: Proxy) -> dict[str, Any]:
    """A host as the plan of a gateway has it."""
    place = {"address": "127.0.0.1", "port": host.port}
    return {"host": name, "server": name, **place, "requests": 2}
