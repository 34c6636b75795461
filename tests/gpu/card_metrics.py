"""What a host's metrics say of its cards, read through their port while the model answers."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from groups import API_PORT
from monitored import own_metrics, read_metrics

from kimi_prov.on_host.endpoint import api_client

if TYPE_CHECKING:
    from gpu_report import Report
    from machines import Host

COLLECTOR = "kimi-metrics.service"
# Chats at once, and seconds after which the cards have been busy for longer than they look back.
ASKED_AT_ONCE = 4
BUSY_S = 3.0
# A card that serves holds more.
LEAST_MIB = 1000
_LINKS = "kimi_gpu_nvlink_errors_total"
_ASKED = ("power.draw", "memory.used", "temperature.gpu", "utilization.gpu")
# By what is told beside in the same order, and what one of its units is in the metric's.
_METRICS = (
    ("kimi_gpu_power_watts", 1.0),
    ("kimi_gpu_memory_used_bytes", float(1 << 20)),
    ("kimi_gpu_temperature_celsius", 1.0),
    ("kimi_gpu_utilisation_ratio", 0.01),
)


def wishes(network: str) -> dict[str, Any]:
    """Variables by which a host shows its metrics to this computer."""
    return {"kimi_metrics": True, "kimi_metrics_networks": [f"{network}.1/32"]}


def wrong_under_load(host: Host, report: Report) -> list[str]:
    """Say what the collector, in its unit, tells of the cards otherwise than the driver's tool.

    Chats are answered meanwhile. Power, temperature and use move by themselves: they are kept.
    """
    over, statuses = threading.Event(), []
    key, pin = host.door()
    body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 256}
    endpoint = api_client.Endpoint(host.address, API_PORT, pin, 120)

    def ask() -> None:
        while not over.is_set():
            statuses.append(
                api_client.request_chat(endpoint, key, body | {"ignore_eos": True}).status
            )

    clients = [threading.Thread(target=ask) for _ in range(ASKED_AT_ONCE)]
    for client in clients:
        client.start()
    try:
        time.sleep(BUSY_S)
        told, beside = own_metrics(host), _by_the_drivers_tool()
    finally:
        over.set()
        for client in clients:
            client.join()
    metrics_key = host.ssh("cat /etc/kimi/keys/metrics.key").strip()
    status, page = read_metrics(host, "/metrics/node", metrics_key)
    spent = host.ssh(f"systemctl show -P CPUUsageNSec {COLLECTOR}").strip()
    rows = [[told.get(_of(name, at), 0) / unit for name, unit in _METRICS] for at in _cards(beside)]
    report.figure(
        metrics_of_cards={
            "fields": _ASKED,
            "told": [[round(cell, 1) for cell in row] for row in rows],
            "nvidia-smi": beside,
            "throttled": sorted(name for name, on in told.items() if on and "throttled" in name),
            "nvlink_errors": [told.get(_of(_LINKS, at)) for at in _cards(beside)],
            "collector_cpu_s": round(int(spent) / 1e9, 2),
        }
    )
    shown = {int(card) for card in re.findall(rf'^{_METRICS[0][0]}{{gpu="(\d+)"}}', page, re.M)}
    found = {
        "chats": set(statuses) == {200},
        "parts that failed": told["kimi_metrics_parts_failed"] == 0,
        "cards planned and seen": told["kimi_gpus_planned"] == told["kimi_gpus_seen"] == len(rows),
        "memory": all(
            row[1] == pytest.approx(other[1], rel=0.02) and other[1] > LEAST_MIB
            for row, other in zip(rows, beside, strict=True)
        ),
        "power, temperature or use": all(min(row) > 0 for row in rows),
        "NVLink": len(rows) == 1 or all(_of(_LINKS, at) in told for at in _cards(beside)),
        "the port": status == 200 and shown == {*_cards(beside)},
    }
    return [name for name, right in found.items() if not right]


def _cards(rows: list[list[float]]) -> range:
    return range(len(rows))


def _of(name: str, card: int) -> str:
    return f'{name}{{gpu="{card}"}}'


def _by_the_drivers_tool() -> list[list[float]]:
    query = f"--query-gpu={','.join(_ASKED)}"
    done = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [[float(cell) for cell in line.split(", ")] for line in done.stdout.splitlines()]
