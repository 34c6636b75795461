"""TCP ports of a group of hosts, derived from `kimi_group_port`."""

from __future__ import annotations

_ENGINE, _COUNT = 10, 32


def find_master_port(control: int) -> int:
    """Return the port at which the engines of a group find each other."""
    return control + 1


def find_engine_ports(control: int) -> tuple[int, int]:
    """Return first and last port of the further ones on which an engine of a group listens."""
    return control + _ENGINE, control + _ENGINE + _COUNT - 1
