"""Dashboards and alerts on the metrics of machines.

`series`, `panels` and `alerts.yaml` decide; `make docs` makes from them what Prometheus, Grafana
and people read (`generated.make_files`). Whoever installs a monitor takes the folders below this
one.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
# For Prometheus: rules, and console templates that it serves below /consoles/.
RULES = HERE / "rules"
CONSOLES = HERE / "consoles"
# For a Grafana of the site's.
DASHBOARDS = HERE / "dashboards"
