"""A host that becomes a rank of a group keeps its keys, and has no proxy any more."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.gateway import proxy

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that notes what it was told."""
    tool = tmp_path / "bin" / "systemctl"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    (tmp_path / "told").write_text("")
    return tmp_path / "told"


def test_the_proxy_goes_and_keys_and_certificate_stay(tmp_path: Path, told: Path) -> None:
    paths = Paths(tmp_path / "root")
    unit = paths.units / "kimi-proxy.service"
    gone = (unit, paths.proxy_config, paths.proxy_stamp)
    stay = (paths.key_map, paths.tls_pem, paths.tls_crt, paths.verify_key, paths.operator_new)
    for path in (*gone, *stay):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert proxy.remove_proxy(paths, check=True) == {"changed": True, "did": "remove"}
    assert told.read_text() == ""
    assert all(path.exists() for path in gone)
    assert proxy.remove_proxy(paths) == {"changed": True, "did": "remove"}
    assert "disable --now kimi-proxy.service\n" in told.read_text()
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in stay)
    assert not proxy.remove_proxy(paths)["changed"]
