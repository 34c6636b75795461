"""The names that people give to our units."""

from __future__ import annotations

import pytest

from kimi_prov.contract import unit_names


@pytest.mark.parametrize(
    ("said", "unit"),
    [
        ("proxy", "kimi-proxy.service"),
        ("kimi-proxy", "kimi-proxy.service"),
        ("kimi-proxy.service", "kimi-proxy.service"),
        ("serve@0", "kimi-serve@0.service"),
        ("kimi-serve@12.service", "kimi-serve@12.service"),
        ("serve", "kimi-serve@*.service"),
        ("kimi-serve", "kimi-serve@*.service"),
        ("acme.timer", "kimi-acme.timer"),
        ("srv-kimi-ram.mount", "srv-kimi-ram.mount"),
        ("sshd", None),
        ("serve@*", None),
        ("../proxy", None),
        ("", None),
    ],
)
def test_a_unit_by_the_name_that_somebody_gives(said: str, unit: str | None) -> None:
    assert unit_names.find_unit(said) == unit


def test_every_unit_is_found_by_its_short_name() -> None:
    for name in unit_names.OURS:
        if name != unit_names.SERVE_TEMPLATE:
            assert unit_names.find_unit(unit_names.shorten(name)) == name
    assert unit_names.shorten("ssh.service") == "ssh.service"
