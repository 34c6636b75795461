"""What `diagnose` takes along of what programs of others are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host import diagnose

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "there",
    [
        {},
        {layout.PROXY_CONFIG: "frontend api"},
        {layout.PROXY_CONFIG: "frontend api", layout.ADDRESS_CONFIG: "vrrp_instance kimi"},
    ],
)
def test_a_gateway_gives_what_haproxy_and_keepalived_are_told(
    tmp_path: Path, there: dict[str, str]
) -> None:
    paths = Paths(tmp_path)
    for name, text in there.items():
        paths.locate(name).parent.mkdir(parents=True, exist_ok=True)
        paths.locate(name).write_text(text)
    found = diagnose.read_configuration(paths)
    assert sorted(found.values()) == sorted(there.values())
    assert set(found) <= {"haproxy.cfg", "address.conf"}


def test_the_units_of_a_gateway_come_before_those_that_serve_nobody() -> None:
    names = ["kimi-drift.service", "kimi-gateway-address.service", "kimi-proxy.service"]
    assert diagnose.sort_units(names)[-1] == "kimi-drift.service"
