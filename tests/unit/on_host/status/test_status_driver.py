"""What `status` tells of a driver that was tried in vain."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.status import machine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("failed", [None, {"version": "580.159.04", "why": "no GPU answers"}])
def test_a_machine_that_stopped_at_its_driver_says_so(
    tmp_path: Path, failed: dict[str, str] | None
) -> None:
    state = tmp_path / layout.DRIVER_STATE[1:]
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"version": "570.133.20", "failed": failed}))
    found = machine.collect(Paths(tmp_path))
    assert found["detail"].startswith("not provisioned: no /etc/kimi/plan.json")
    told = "NVIDIA's driver 580.159.04 did not answer here (no GPU answers)" in found["detail"]
    assert told is (failed is not None)
