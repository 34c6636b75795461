"""The hosts of the inventory that fetch the same weights, by their variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.planner.hosts.neighbours import Neighbour

if TYPE_CHECKING:
    from collections.abc import Mapping

_GROUP = "kimi"
# Hosts with equal values of these fetch the same files, and use the same port for each other.
_ALIKE = (
    "kimi_model",
    "kimi_weights_source",
    "kimi_weights_manifest",
    "kimi_weights_format",
    "kimi_engine_stand_in",
    "kimi_weights_port",
)
_FROM = "kimi_weights_from"


def list_neighbours(variables: Mapping[str, Any]) -> list[Neighbour]:
    """Return the hosts that fetch the same weights as this one, this one included, in order.

    The inventory decides, not what a run reaches: a plan does not change with --limit.
    """
    # A host's own variables still have templates here, those of `hostvars` have not.
    known, host = variables["hostvars"], str(variables["inventory_hostname"])
    own = _read_settings(known[host])
    hosts = []
    for name in map(str, variables["groups"].get(_GROUP) or ()):
        row = known[name]
        if name == host or (row.get(_FROM) != "source" and _read_settings(row) == own):
            hosts.append(Neighbour(name, _find_address(name, row)))
    return hosts


def _read_settings(variables: Mapping[str, Any]) -> list[str | None]:
    values = (variables.get(name) for name in _ALIKE)
    return [None if value is None else str(value) for value in values]


def _find_address(name: str, variables: Mapping[str, Any]) -> str:
    return str(variables.get("kimi_group_address") or variables.get("ansible_host") or name)
