"""Prometheus reads each expression of the dashboards."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import yaml
from metric_names import expressions

if TYPE_CHECKING:
    from pathlib import Path


def test_prometheus_reads_every_expression(tmp_path: Path) -> None:
    rows = [
        {
            "record": f"a:{number}",
            "expr": expression.replace("$__rate_interval", "5m").replace("$host", "a"),
        }
        for number, (_, expression) in enumerate(expressions())
    ]
    file = tmp_path / "all.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rows}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(rows)} rules found" in done.stdout
