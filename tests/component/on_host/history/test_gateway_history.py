"""A gateway's applies are kept and listed, what it was is compared, and no way back goes to it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from plan_inputs import LAB_SETTINGS, lab_facts

from kimi_prov.ansible import switching
from kimi_prov.catalog import loader
from kimi_prov.contract import paths as layout
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.drift import compare
from kimi_prov.on_host.history import applied, clean, close_switch, entries, report
from kimi_prov.planner import gateways
from kimi_prov.planner.gateways import GatewayAddress, ServingHost
from kimi_prov.planner.settings.parsing import parse_settings
from kimi_prov.show.text import history as history_text

if TYPE_CHECKING:
    from pathlib import Path

    from applied_machine import Applied

RUN = {
    "run": "r1",
    "by": {"user": "ann", "control_host": "desk"},
    "inventory": "hosts.yml",
    "kimi_prov": "1",
}
PYTHON = "cpython-3.12.11-20250708"


def made(machine: Applied, *hosts: str) -> None:
    """Leave what an apply leaves on a gateway to these hosts."""
    behind = [ServingHost(name, f"10.0.9.{11 + at}", 8000, 8) for at, name in enumerate(hosts)]
    settings = parse_settings(LAB_SETTINGS, host="gw1")
    plan = gateways.make_plan(
        lab_facts(), settings, loader.load_catalogue(), behind, [GatewayAddress("gw1", "10.0.9.1")]
    )
    machine.put(layout.PLAN, switching.render_plan(plan), 0o640)
    machine.put(layout.ADDRESS_CONFIG, "vrrp_instance kimi {}", 0o640)
    machine.put(layout.KEY_MAP, "")


def end(machine: Applied, *, done: bool = True) -> dict[str, Any]:
    return close_switch.close(machine.places, {**RUN, "done": done, "keep": 2})


def history(machine: Applied) -> dict[str, Any]:
    document = {
        "schema": "kimi-prov/history/v1",
        "ok": True,
        "hosts": {"gw1": report.collect(machine.places)},
    }
    closed_form.validate(document, "history")
    return document


@pytest.fixture
def gateway(machine: Applied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Applied:
    """A gateway to two hosts, on a root of its own; systemctl is that of `machine`."""
    monkeypatch.setattr(close_switch.apply_lock, "release", lambda run: {"held": False})
    found = type(machine)(Paths(tmp_path / "gateway"))
    made(found, "gpu1", "gpu2")
    return found


def test_each_apply_that_decides_otherwise_is_an_entry(gateway: Applied) -> None:
    assert end(gateway)["entry"] == 1
    # The same again is none.
    assert end(gateway)["entry"] == 1
    made(gateway, "gpu1", "gpu2", "gpu3")
    assert end(gateway)["entry"] == 2
    document = history(gateway)
    rows = document["hosts"]["gw1"]["entries"]
    assert [row["gateway"]["hosts"] for row in rows] == [["gpu1", "gpu2"], ["gpu1", "gpu2", "gpu3"]]
    assert [row["serves"] for row in rows] == [None, None]
    assert not any(row["restorable"] for row in rows)
    assert "sends to" in history_text.format_text(document)
    assert "gpu1, gpu2, gpu3" in history_text.format_text(document)
    assert "inventory" in str(
        entries.explain_not_restorable(gateway.places, entries.read_last(gateway.places))
    )


def test_an_apply_that_failed_is_no_entry(gateway: Applied) -> None:
    assert end(gateway, done=False)["entry"] is None
    assert report.collect(gateway.places)["entries"] == []


def test_what_is_not_as_it_was_applied_shows(gateway: Applied) -> None:
    end(gateway)
    was = applied.read(gateway.places)
    assert list(compare.list_differences(was, applied.observe(gateway.places, was))) == []
    gateway.put(layout.ADDRESS_CONFIG, "by hand", 0o640)
    gateway.put(f"{layout.PROXY}/own.cfg", "by hand")
    found = compare.list_differences(was, applied.observe(gateway.places, was))
    assert [(row.id, row.subject) for row in found] == [
        ("drift.file", layout.ADDRESS_CONFIG),
        ("drift.file_added", f"{layout.PROXY}/own.cfg"),
    ]


def test_a_certificate_of_a_host_behind_it_may_change(gateway: Applied) -> None:
    gateway.put(f"{layout.HOSTS}/gpu1.crt", "one")
    end(gateway)
    was = applied.read(gateway.places)
    gateway.put(f"{layout.HOSTS}/gpu1.crt", "another")
    assert list(compare.list_differences(was, applied.observe(gateway.places, was))) == []


def test_an_interpreter_that_no_page_uses_any_more_goes(gateway: Applied) -> None:
    end(gateway)
    for name in (PYTHON, "of-an-earlier-page"):
        gateway.put(f"{layout.PYTHONS}/{name}/bin/python3", "x")
    home = f"home = {layout.PYTHONS}/{PYTHON}/bin\n"
    gateway.put(f"{layout.WEB_ENVS}/0.12.4-abc/pyvenv.cfg", home)
    found = clean.remove_unneeded(gateway.places, remove=True)
    assert [(row["kind"], row["of"]) for row in found["items"]] == [
        ("python", "of-an-earlier-page")
    ]
    assert [path.name for path in gateway.places.locate(layout.PYTHONS).iterdir()] == [PYTHON]


def test_an_entry_of_a_gateway_is_read_from_a_backup(gateway: Applied) -> None:
    end(gateway)
    kept = json.loads(json.dumps(entries.read_last(gateway.places)))
    assert entries.from_other_machine(kept)["gateway"] == {
        "address": None,
        "hosts": ["gpu1", "gpu2"],
    }
    with pytest.raises(ValueError, match="gateway"):
        entries.from_other_machine({**kept, "gateway": {"address": None, "hosts": [1]}})
