"""What a status of all gateways tells that none of them sees alone."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_prov.commands.common.gateway_faults import mark_split_gateways


def gateway(*, has: bool | None, address: str | None = "10.0.9.100") -> dict[str, Any]:
    own = {"address": address, "has_address": has}
    return {"ok": True, "detail": "sends to 2 of 2 hosts", "gateway": own}


def test_two_that_have_one_address_are_told() -> None:
    machine = {"ok": True, "detail": "serves"}
    found = mark_split_gateways(
        {"gpu1": machine, "gw1": gateway(has=True), "gw2": gateway(has=True)}
    )
    assert [found[host]["ok"] for host in ("gpu1", "gw1", "gw2")] == [True, False, False]
    assert "gw1 and gw2 both have 10.0.9.100" in found["gw2"]["detail"]


@pytest.mark.parametrize(
    "other",
    [
        gateway(has=False),
        gateway(has=True, address="10.0.9.101"),
        gateway(has=None, address=None),
        {"ok": False, "provisioned": False, "detail": "unreachable"},
    ],
)
def test_one_that_has_it_is_well(other: dict[str, Any]) -> None:
    documents = {"gw1": gateway(has=True), "gw2": other}
    assert mark_split_gateways(documents) == documents
