"""Our own console: one page that queries Prometheus and draws by itself, without Grafana.

Prometheus serves it as a console template, in which two opening braces would begin an action: the
page has none.

Decides: which panels show the metrics (Prometheus's consoles).
"""

from __future__ import annotations

import json

from kimi_prov.monitoring import HERE
from kimi_prov.monitoring.panels import ROWS

_SOURCE = HERE / "console_source"


def make_page() -> str:
    """Return the page with its style, its script and the panels in it."""
    rows = [
        {
            "title": title,
            "panels": [
                {
                    "key": panel.key,
                    "title": panel.title,
                    "unit": panel.unit,
                    "note": panel.note,
                    "maximum": panel.maximum,
                    "lines": [
                        {
                            "expr": line.expression,
                            "name": line.name,
                            "labels": list(line.labels),
                            "dash": line.dash,
                            "alone": line.alone,
                        }
                        for line in panel.lines
                    ],
                }
                for panel in panels
            ],
        }
        for title, panels in ROWS
    ]
    # No text may hold the end of a script or a pair of braces.
    data = json.dumps(rows, indent=1).replace("<", "\\u003c").replace("{{", "{\\u007b")
    page = (_SOURCE / "kimi.html").read_text(encoding="utf-8")
    for mark, text in (
        ("/*STYLE*/", (_SOURCE / "style.css").read_text(encoding="utf-8")),
        ("/*PANELS*/", data),
        ("/*SCRIPT*/", _make_script()),
    ):
        page = page.replace(mark, text)
    return page


def _make_script() -> str:
    """Return the script without its comments, which a template of Prometheus loses too."""
    lines = (_SOURCE / "draw.js").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("//"))
