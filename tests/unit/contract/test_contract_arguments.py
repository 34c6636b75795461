"""Flags are left out with their values, and nothing else is."""

from __future__ import annotations

import pytest

from kimi_prov.contract.arguments import remove_flags


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("--model m --host 0.0.0.0 --seed 1", "--model m --seed 1"),
        ("--host=0.0.0.0 --seed 1", "--seed 1"),
        ("--nodes 0 1 2 --headless", "--headless"),
        ("m --headless --hosts a --port", "m --headless --hosts a"),
        ("", ""),
    ],
)
def test_flags_go_with_their_values(line: str, left: str) -> None:
    assert remove_flags(line.split(), {"--host", "--nodes", "--port"}) == left.split()
