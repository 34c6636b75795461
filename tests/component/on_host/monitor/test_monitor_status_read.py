"""What is read of a real Prometheus for `status`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from prometheus import get, prometheus
from waiting import until

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.monitor import status
from kimi_prov.on_host.status import machine

if TYPE_CHECKING:
    from pathlib import Path

RULE = {
    "alert": "Tried",
    "expr": "up == 0",
    "labels": {"severity": "critical"},
    "annotations": {"summary": "{{ $labels.host }} is\x1b[31m away"},
}
WAITING = {**RULE, "alert": "Waiting", "for": "1d"}


def test_targets_and_what_fires_are_read_of_prometheus(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(json.dumps({"groups": [{"name": "own", "rules": [RULE, WAITING]}]}))
    # Nothing listens there.
    labels = {"host": "h1", "job": "kimi-engine", "engine": "0"}
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": "h1", "static_configs": [{"targets": ["127.0.0.1:1"], "labels": labels}]}
        ],
    }
    with prometheus(tmp_path, config) as address:
        alerts, targets = f"{address}/api/v1/alerts", f"{address}/api/v1/targets"
        assert until(lambda: status.parse_alerts(status.read_page(alerts)))
        (row,) = status.parse_alerts(status.read_page(alerts)) or []
        assert {row["state"] for row in get(alerts)["data"]["alerts"]} == {"firing", "pending"}
        assert (row["name"], row["host"], row["severity"]) == ("Tried", "h1", "critical")
        assert "\x1b" not in row["summary"]
        assert status.parse_targets(status.read_page(targets)) == [{**labels, "health": "down"}]
    assert status.read_page(alerts) == ""


def test_a_prometheus_that_does_not_answer_makes_it_no_success(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.monitor_etc.mkdir(parents=True)
    settings = {"listen": "127.0.0.1", "port": 1, "retention_bytes": 100}
    (paths.monitor_etc / "settings.json").write_text(json.dumps(settings))
    found = machine.collect(paths)
    assert (found["ok"], found["provisioned"], found["monitor"]["answers"]) == (False, True, False)
    assert found["monitor"]["series_limit_bytes"] == 100
