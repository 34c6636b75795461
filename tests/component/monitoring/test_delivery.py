"""An alert on its whole way: real Prometheus, real Alertmanager, to a web hook and by e-mail.

Receivers on the loopback take what comes; what arrives names the machine, what is wrong, what to do
and its page.
"""

from __future__ import annotations

import email
import email.policy
import json
import socketserver
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from ports import free_port
from prometheus import get, program, prometheus, query
from waiting import until

from kimi_prov.monitoring import RULES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Alertmanager groups for seconds, and Prometheus looks each second.
pytestmark = pytest.mark.slow

HOST = "gpu-7"


class Exporter:
    """What the node exporter of a machine would show; `lost` GPUs of eight."""

    def __init__(self) -> None:
        self.lost = 0

    def text(self) -> str:
        return f"kimi_gpus_planned 8\nkimi_gpus_seen {8 - self.lost}\n"


@contextmanager
def served(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def machine(exporter: Exporter, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exporter.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def hook(taken: list[dict[str, Any]], port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def mailbox(taken: list[bytes], port: int) -> socketserver.ThreadingTCPServer:
    """As much SMTP as a mail needs."""

    class Handler(socketserver.StreamRequestHandler):
        def say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def handle(self) -> None:
            self.say("220 localhost")
            while line := self.rfile.readline():
                verb = line.split()[0].upper() if line.split() else b""
                if verb == b"DATA":
                    self.say("354 go on")
                    lines = iter(self.rfile.readline, b".\r\n")
                    taken.append(b"".join(row.removeprefix(b".") for row in lines))
                self.say("221 bye" if verb == b"QUIT" else "250 ok")
                if verb == b"QUIT":
                    return

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    return Server(("127.0.0.1", port), Handler)


def alertmanager(hook_port: int, mail_port: int) -> dict[str, Any]:
    """As the role `monitor` has it, with shorter waits."""
    receiver = {
        "name": "site",
        "webhook_configs": [{"url": f"http://127.0.0.1:{hook_port}/", "send_resolved": True}],
        "email_configs": [
            {
                "to": "operators@example.org",
                "from": "kimi@example.org",
                "smarthost": f"127.0.0.1:{mail_port}",
                "require_tls": False,
                "send_resolved": True,
            }
        ],
    }
    route = {
        "receiver": "site",
        "group_by": ["alertname", "host"],
        "group_wait": "1s",
        "group_interval": "1s",
        "repeat_interval": "4h",
    }
    return {"route": route, "receivers": [receiver]}


def test_an_alert_arrives_by_hook_and_mail_and_so_does_its_end(tmp_path: Path) -> None:
    exporter, hooked, mailed = Exporter(), [], []
    ports = {name: free_port() for name in ("machine", "hook", "mail", "alertmanager")}
    own = f"http://127.0.0.1:{ports['alertmanager']}"
    (tmp_path / "am.yml").write_text(json.dumps(alertmanager(ports["hook"], ports["mail"])))
    scraped = {
        "job_name": HOST,
        "static_configs": [
            {
                "targets": [f"127.0.0.1:{ports['machine']}"],
                "labels": {"host": HOST, "job": "kimi-node"},
            }
        ],
    }
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{RULES}/*.yml"],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [own.removeprefix("http://")]}]}]
        },
        "scrape_configs": [scraped],
    }
    with (
        served(machine(exporter, ports["machine"])),
        served(hook(hooked, ports["hook"])),
        served(mailbox(mailed, ports["mail"])),
        program(
            tmp_path,
            "prometheus-alertmanager",
            f"--config.file={tmp_path / 'am.yml'}",
            f"--storage.path={tmp_path / 'am'}",
            f"--web.listen-address=127.0.0.1:{ports['alertmanager']}",
            "--cluster.listen-address=",
            "--log.level=warn",
            ready=f"{own}/-/ready",
        ),
        prometheus(tmp_path, config, "--web.external-url=http://monitor.example:9090/") as address,
    ):
        assert until(lambda: query(address, "kimi_gpus_seen == 8"))
        assert get(f"{own}/api/v2/alerts") == []
        exporter.lost = 1
        assert until(lambda: hooked and mailed), get(f"{address}/api/v1/alerts")
        told = hooked[0]["alerts"][0]
        assert (told["status"], told["labels"]["severity"]) == ("firing", "critical")
        assert told["labels"]["alertname"] == "KimiGpuLost"
        assert told["annotations"] == {
            "summary": f"{HOST}: the driver sees 7 GPUs, fewer than the plan uses",
            "description": "The engine cannot run without it. Look at the kernel's log for Xid 79 "
            f"(dmesg | grep -i xid) on {HOST}; a cold restart often brings it back; otherwise have "
            "the card checked.",
            "runbook_url": "http://monitor.example:9090/consoles/kimi-alerts.html#KimiGpuLost",
            "page": "docs/alerts/KimiGpuLost.md",
        }
        letter = email.message_from_bytes(mailed[0], policy=email.policy.default)
        assert letter["To"] == "operators@example.org"
        assert "FIRING" in letter["Subject"]
        assert HOST in letter["Subject"]
        body = letter.get_body(("html",)).get_content()
        for part in (
            "the driver sees 7 GPUs",
            "Look at the kernel",
            "kimi-alerts.html#KimiGpuLost",
        ):
            assert part in body
        exporter.lost = 0
        assert until(lambda: hooked[-1]["status"] == "resolved" and len(mailed) > 1)
        assert b"RESOLVED" in mailed[-1]
