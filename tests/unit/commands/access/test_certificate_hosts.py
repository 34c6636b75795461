"""Which hosts a certificate is for."""

from __future__ import annotations

import pytest

from kimi_prov.commands.access import trust


@pytest.mark.parametrize(
    ("names", "host", "covered"),
    [
        (["kimi.example.com"], "KIMI.example.com.", True),
        (["*.example.com"], "kimi.example.com", True),
        (["*.example.com"], "a.kimi.example.com", False),
        (["*.com"], "example.com", False),
        (["10.0.0.1"], "10.0.0.1", True),
        (["0:0:0:0:0:0:0:1"], "::1", True),
        (["10.0.0.1"], "10.0.0.11", False),
    ],
)
def test_which_hosts_a_certificate_is_for(names: list[str], host: str, covered: bool) -> None:
    assert trust.is_covered(names, host) is covered
