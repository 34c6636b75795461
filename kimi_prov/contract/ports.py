"""TCP ports of a group of hosts, from the one that is set: `kimi_group_port`."""

from __future__ import annotations

_ENGINE, _COUNT = 10, 32


def find_master_port(control: int) -> int:
    """Port at which the engines of a group find each other."""
    return control + 1


def find_engine_ports(control: int) -> tuple[int, int]:
    """First and last port of those that an engine of a group listens on besides."""
    return control + _ENGINE, control + _ENGINE + _COUNT - 1
