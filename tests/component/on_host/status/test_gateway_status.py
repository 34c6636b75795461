"""What `status` tells of a gateway, made on a machine of files, as a document and in words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import closed_form
import pytest

from kimi_prov.contract import unit_names
from kimi_prov.contract.gateways import SCHEMA
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.keys import publish
from kimi_prov.on_host.status import gateway, machine
from kimi_prov.show.text import status

if TYPE_CHECKING:
    from pathlib import Path

WEB = {
    "name": "open-webui",
    "version": "0.12.4",
    "lock": "open-webui-slim-0.12.4-cp311.txt",
    "env_name": "0.12.4-abc",
    "port": 8443,
    "backend_port": 1,
    "signup": False,
    "data": "/srv/kimi/web",
}


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    found = Paths(tmp_path)
    found.proxy.mkdir(parents=True)
    found.web_env.parent.mkdir(parents=True)
    found.web_env.symlink_to("0.12.4-abc")
    tls.ensure(found, {"mode": "self-signed", "names": ["gw1"]})
    publish.ensure(found, {}, page=True)
    running = {"state": "active", "load_state": "loaded", "memory_bytes": 400_000_000}
    monkeypatch.setattr(gateway.units, "read_states", lambda *names: dict.fromkeys(names, running))
    return found


def told(paths: Paths, web: dict[str, Any] | None) -> dict[str, Any]:
    plan = {
        "schema": SCHEMA,
        "gateway": {"address": None, "peers": [], "hosts": []},
        "proxy": {"port": 8000, "allowed_networks": [], "tls": {"mode": "self-signed"}},
        "web": web,
    }
    paths.plan.write_text(json.dumps(plan))
    found = {**machine.collect(paths), "stand_ins": []}
    whole = {"schema": "kimi-prov/status/v1", "ok": found["ok"], "hosts": {"gw1": found}}
    closed_form.validate(whole, "status")
    return whole


def test_a_gateway_tells_of_the_page_that_it_has(paths: Paths) -> None:
    whole = told(paths, WEB)
    page = whole["hosts"]["gw1"]["web"]
    assert (page["version"], page["answers"], page["memory_bytes"]) == (
        "0.12.4",
        False,
        400_000_000,
    )
    assert "open-webui 0.12.4, DOES NOT ANSWER on 8443" in status.format_text(whole)


def test_a_gateway_without_a_page_tells_of_none(paths: Paths) -> None:
    whole = told(paths, None)
    assert whole["ok"]
    assert whole["hosts"]["gw1"]["web"] is None
    assert "page" not in status.format_text(whole)


def test_a_page_that_does_not_run_is_no_good_gateway(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = gateway.units.read_states(unit_names.PROXY)[unit_names.PROXY]

    def show(*names: str) -> dict[str, Any]:
        return {name: running for name in names if name != unit_names.WEB}

    monkeypatch.setattr(gateway.units, "read_states", show)
    whole = told(paths, WEB)
    assert not whole["ok"]
    assert unit_names.WEB in whole["hosts"]["gw1"]["detail"]
