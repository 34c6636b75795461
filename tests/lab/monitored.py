"""A lab host that shows metrics, one that watches it, and a receiver of the alerts."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from machines import Host, Lab, make_lab
from waiting import HANGS_S

from kimi_prov.on_host.endpoint import api_client, tls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

NODE, WATCHER = "node1", "watcher"
METRICS_PORT = 9443
# Posted to by Alertmanager on the host itself: each body is a line of a file.
RECEIVER = """
import http.server, json, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open("/tmp/alerts", "a") as file:
            file.write(json.dumps([time.time(), json.loads(body)]) + "\\n")
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 9999), Handler).serve_forever()
"""


@dataclass
class Hook:
    """What the receiver on a host was told."""

    host: Host

    def told(self) -> list[dict[str, Any]]:
        """Each alert as often as it was delivered: when, its name, status, labels, annotations."""
        text = self.host.ssh("cat /tmp/alerts 2>/dev/null || true")
        return [
            {**row, "at": at, "name": row["labels"]["alertname"]}
            for at, told in map(json.loads, text.splitlines())
            for row in told["alerts"]
        ]


@contextmanager
def receiving(host: Host) -> Iterator[Hook]:
    """Receive on a host what its Alertmanager delivers."""
    host.ssh(
        f"cat > /tmp/receiver.py <<'EOF'\n{RECEIVER}\nEOF\n"
        "systemd-run --unit=receiver python3 /tmp/receiver.py"
    )
    try:
        yield Hook(host)
    finally:
        host.ssh("systemctl stop receiver; rm -f /tmp/receiver.py /tmp/alerts")


def monitored_lab(
    inventory: Path, network: str, outsiders: Iterable[str] = (), **wishes: object
) -> Lab:
    """Write an inventory of a host that serves and shows metrics, and one that watches it.

    `outsiders`: further hosts, which may do neither; `wishes`: settings of the host that serves.
    """
    names = [*outsiders, WATCHER]
    made = make_lab(
        inventory,
        network,
        nodes=[NODE],
        outsiders=names,
        kimi_metrics=True,
        # Beside the control machine, the one node comes first.
        kimi_metrics_networks=[f"{network}.{11 + len(names)}/32"],
        **wishes,
    )
    document = yaml.safe_load((inventory / "hosts.yml").read_text())
    document["all"]["children"]["kimi_monitor"] = {"hosts": {WATCHER: {}}}
    (inventory / "hosts.yml").write_text(yaml.safe_dump(document))
    secrets = inventory / "secrets"
    secrets.mkdir()
    (secrets / "url").write_text("http://127.0.0.1:9999/\n")
    options = {
        "monitor_listen": "0.0.0.0",
        # The host that serves, and not the control machine.
        "monitor_networks": [f"{network}.11/32"],
        "monitor_scrape_interval_s": 5,
        "monitor_retention_bytes": 100 << 20,
        "monitor_alert_webhook_url_file": str(secrets / "url"),
    }
    (inventory / "group_vars" / "kimi_monitor.yml").write_text(yaml.safe_dump(options))
    return made


def own_metrics(host: Host) -> dict[str, float]:
    """What kimi-prov says of the host now, by name with its labels."""
    # systemd starts no unit more than five times in ten seconds.
    host.ssh("systemctl reset-failed kimi-metrics.service; systemctl start kimi-metrics.service")
    text = host.ssh("cat /var/lib/kimi/metrics/kimi.prom")
    rows = (line for line in text.splitlines() if not line.startswith("#"))
    return {row.rpartition(" ")[0]: float(row.rpartition(" ")[2]) for row in rows}


def read_metrics(host: Host, path: str, key: str | None) -> tuple[int, str]:
    """Status and text of a page of a host's metrics, asked from this computer."""
    pin = tls.compute_fingerprint(host.ssh("cat /etc/kimi/proxy/tls.crt"))
    reply = api_client.call(
        api_client.Endpoint(host.address, METRICS_PORT, pin, HANGS_S), "GET", path, key
    )
    return reply.status, reply.body.decode()


def prometheus(host: Host, path: str) -> Any:
    """What the watching host's Prometheus answers."""
    code = (
        "import urllib.request as u; "
        f"print(u.urlopen('http://127.0.0.1:9090{path}', timeout=20).read().decode())"
    )
    return json.loads(host.ssh(f'python3 -c "{code}"'))["data"]


def targets(host: Host) -> dict[str, str]:
    """Health of each target by its job."""
    found = prometheus(host, "/api/v1/targets")["activeTargets"]
    return {row["labels"]["job"]: row["health"] for row in found}
