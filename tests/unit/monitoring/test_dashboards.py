"""The dashboards for Grafana, held against the types that Grafana makes from its own schemas.

How its own packages draw them is in tests/grafana.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from kimi_prov.monitoring import DASHBOARDS
from kimi_prov.monitoring.panels import PANELS
from kimi_prov.render.kubernetes import dashboard as of_pods

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = sorted(DASHBOARDS.glob("*.json"))
TEXTS = {
    **{file.stem: file.read_text() for file in FILES},
    "pods": of_pods.make_document("kimi", "models"),
    "pods-chosen": of_pods.make_document("kimi", None),
}


def lost(own: Any, back: Any, where: str = "") -> Iterator[str]:
    """What of a document Grafana's types do not know."""
    if isinstance(own, dict) and isinstance(back, dict):
        for key, value in own.items():
            yield from lost(value, back.get(key), f"{where}.{key}")
    elif isinstance(own, list) and isinstance(back, list) and len(own) == len(back):
        for at, pair in enumerate(zip(own, back, strict=True)):
            yield from lost(*pair, f"{where}[{at}]")
    elif own != back:
        yield where


def read_and_written(document: dict[str, Any]) -> Any:
    plugins.register_default_plugins()
    return json.loads(json.dumps(Dashboard.from_json(document), cls=encoder.JSONEncoder))


@pytest.mark.parametrize("name", TEXTS)
def test_grafana_s_types_know_every_key(name: str) -> None:
    document = json.loads(TEXTS[name])
    assert list(lost(document, read_and_written(document))) == []
    panel = next(row for row in document["panels"] if row["type"] == "timeseries")
    panel["options"]["legend"]["invented"] = 1
    assert list(lost(document, read_and_written(document))) != []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_panel_is_there_once_and_none_lies_over_another(file: Path) -> None:
    panels = json.loads(file.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {p["type"] for p in panels} == {"row", "timeseries"}
    titles = [panel["title"] for panel in panels if panel["type"] == "timeseries"]
    assert titles == [panel.title for panel in PANELS]
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & taken
        assert place["x"] + place["w"] <= 24
        taken |= own


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_source_of_data_is_chosen_and_nothing_is_fetched_from_elsewhere(file: Path) -> None:
    text = file.read_text()
    document = json.loads(text)
    assert set(re.findall(r'"uid": "(\$[^"]*)"', text)) == {"${datasource}"}
    assert [row["name"] for row in document["templating"]["list"]] == ["datasource", "host"]
    assert "http" not in text.replace("haproxy_frontend_http", "")
