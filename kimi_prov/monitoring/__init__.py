"""Dashboards and alerts on the metrics of machines.

They are defined in `series`, `panels` and `alerts.yaml`; `make docs` generates from them the files
for Prometheus, Grafana and readers (`generated.make_files`). A monitor gets the folders below this
one.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
# For Prometheus: rules, and console templates, which it serves below /consoles/.
RULES = HERE / "rules"
CONSOLES = HERE / "consoles"
# For a site's own Grafana.
DASHBOARDS = HERE / "dashboards"
