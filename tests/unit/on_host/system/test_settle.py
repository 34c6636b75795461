from __future__ import annotations

import pytest

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.proxy import converge


@pytest.mark.parametrize(
    ("running", "active", "expected"),
    [
        ("u1-c1", True, ""),
        ("u1-c0", True, "reload"),
        ("u0-c1", True, "restart"),
        ("", True, "restart"),
        ("", False, "start"),
        ("u1-c1", False, "start"),
    ],
)
def test_what_runs_decides_and_not_what_a_play_has_changed(running, active, expected):
    assert converge.decide_action(running, "u1-c1", active=active) == expected


def test_unit_and_configuration_are_told_apart(tmp_path):
    paths = Paths(tmp_path)
    paths.proxy.mkdir(parents=True)
    paths.units.mkdir(parents=True)
    stamps = [converge.compute_digest(paths)]
    paths.tls_pem.write_text("certificate")
    stamps.append(converge.compute_digest(paths))
    (paths.units / "kimi-proxy.service").write_text("unit")
    stamps.append(converge.compute_digest(paths))
    units, configurations = zip(*(text.split("-") for text in stamps), strict=True)
    assert units[0] == units[1] != units[2]
    assert configurations[0] != configurations[1] == configurations[2]
