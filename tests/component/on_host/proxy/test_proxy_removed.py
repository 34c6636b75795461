"""A host that becomes a rank of a group keeps its keys; without metrics its proxy goes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.drift import observe
from kimi_prov.on_host.endpoint import haproxy
from kimi_prov.on_host.keys import key_map
from kimi_prov.on_host.proxy import converge
from kimi_prov.on_host.system import machine_key

if TYPE_CHECKING:
    from pathlib import Path

SYSTEMCTL = """#!/bin/sh
echo "$@" >> {told}
[ "$1" = show ] || exit 0
for name in "$@"; do case $name in kimi-*)
  printf 'Id=%s\\nLoadState=loaded\\nActiveState=active\\nUnitFileState=enabled\\n\\n' "$name" ;;
esac; done
"""
METRICS = {
    "tls": {"mode": "self-signed", "names": ["rank1"]},
    "api_keys": None,
    "page": False,
    "metrics": {"sha256": None},
}
METRICS_ALONE = "frontend metrics\n    # /etc/kimi/proxy/metrics-keys.map\n"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that notes what it was told; each unit that it is asked for runs."""
    tool = tmp_path / "bin" / "systemctl"
    tool.parent.mkdir()
    tool.write_text(SYSTEMCTL.format(told=tmp_path / "told"))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    (tmp_path / "told").write_text("")
    return tmp_path / "told"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """A host whose proxy runs what is in place; it has no map, and says so as HAProxy does."""
    found = Paths(tmp_path / "root")
    for folder in (found.units, found.proxy, found.keys, found.state):
        folder.mkdir(parents=True)
    (found.units / "kimi-proxy.service").write_text("[Service]\n")
    no_map = "Unknown map identifier. Please use #<id> or <file>."
    monkeypatch.setattr(
        haproxy,
        "send_command",
        lambda _path, text, **_: (
            f"Description: {converge.compute_digest(found)}" if text == "show info" else no_map
        ),
    )
    return found


def test_the_proxy_goes_and_keys_and_certificate_stay(tmp_path: Path, told: Path) -> None:
    paths = Paths(tmp_path / "root")
    unit = paths.units / "kimi-proxy.service"
    gone = (unit, paths.proxy_config, paths.proxy_stamp)
    stay = (paths.key_map, paths.tls_pem, paths.tls_crt, paths.verify_key, paths.operator_new)
    for path in (*gone, *stay):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert converge.remove_proxy(paths, check=True) == {"changed": True, "did": "remove"}
    assert told.read_text() == ""
    assert all(path.exists() for path in gone)
    assert converge.remove_proxy(paths) == {"changed": True, "did": "remove"}
    assert "disable --now kimi-proxy.service\n" in told.read_text()
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in stay)
    assert not converge.remove_proxy(paths)["changed"]


def test_a_rank_has_a_certificate_and_the_key_of_its_metrics_and_no_other(
    paths: Paths, told: Path
) -> None:
    assert told.read_text() == ""
    done = converge.ensure(paths, METRICS)
    assert (done["changed"], done["keys"]["names"]) == (True, [])
    assert "BEGIN CERTIFICATE" in paths.tls_crt.read_text()
    assert sorted(path.name for path in paths.keys.iterdir()) == ["metrics.key"]
    assert paths.metrics_key_map.exists()
    assert not paths.key_map.exists()
    paths.proxy_config.write_text(METRICS_ALONE)
    # The engine asks for it on any host, and a key that came later would be a reload.
    assert not machine_key.ensure(paths.machine_key)
    again = converge.ensure(paths, METRICS)
    assert (again["changed"], again["converged"]) == (False, True)
    assert converge.converge(paths) == {"changed": False, "did": "nothing"}


def test_what_a_former_head_has_of_its_clients_is_left_alone_and_its_counter_goes(
    paths: Paths, told: Path
) -> None:
    counter = paths.units / "kimi-usage.service"
    counter.write_text("[Service]\n")
    text = key_map.render_map({"alice": "a" * 64})
    paths.key_map.write_text(text)
    paths.proxy_config.write_text(METRICS_ALONE)
    assert not converge.is_converged(paths)
    assert converge.converge(paths, check=True)["changed"]
    assert counter.exists()
    assert converge.converge(paths) == {"changed": True, "did": "counter"}
    assert "disable --now kimi-usage.service\n" in told.read_text()
    assert not counter.exists()
    assert converge.is_converged(paths)
    assert not converge.converge(paths)["changed"]
    assert paths.key_map.read_text() == text
    found = observe.read_proxy_state(paths)
    assert (found["only_loaded"], found["only_in_file"]) == ([], [])
    assert found["loaded"] == found["wanted"]
