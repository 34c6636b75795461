"""The hosts of the inventory that are gateways, and those that serve behind them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible import group_hosts
from kimi_prov.errors import UserError
from kimi_prov.planner import gateways
from kimi_prov.planner.gateways import GatewayAddress, ServingHost
from kimi_prov.planner.settings import parsing
from kimi_prov.planner.settings.definitions import INTERNAL

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP = "kimi_gateway"
_SERVING = "kimi"
# Settings that a gateway takes from the hosts behind it.
_OF_HOSTS = (
    "kimi_model",
    "kimi_served_names",
    "kimi_web_ui",
    "kimi_web_port",
    "kimi_web_signup",
    "kimi_web_admin_file",
)
_MAX_GATEWAYS = 2


def is_gateway(variables: Mapping[str, Any]) -> bool:
    """Whether a host is a gateway. Raises UserError where it also is in a serving group."""
    host = str(variables["inventory_hostname"])
    names = _list_members(variables, GROUP)
    if host not in names:
        return False
    if host in _list_members(variables, _SERVING):
        raise UserError(
            f"host {host} is in {_SERVING} and in {GROUP}: a machine that serves is no gateway",
            fix=f"name a small machine of its own in {GROUP}",
        )
    if len(names) > _MAX_GATEWAYS:
        raise UserError(
            f"{GROUP} has {len(names)} hosts: {', '.join(names)}", fix="name one host, or two"
        )
    return True


def list_gateways(variables: Mapping[str, Any]) -> list[GatewayAddress]:
    """Return the gateways of the inventory, in its order."""
    return [
        GatewayAddress(name, _find_address(name, variables["hostvars"][name]))
        for name in _list_members(variables, GROUP)
    ]


def list_served_hosts(variables: Mapping[str, Any]) -> list[ServingHost]:
    """Return the hosts that serve behind the gateways; of hosts that serve together, the head.

    The inventory decides, not what a run reaches: a host that is down stays one of them.
    """
    known = variables["hostvars"]
    hosts = []
    for name in _list_heads(variables):
        settings = parsing.parse_settings(
            _select_settings(known[name]), host=name, base=_find_folder(known[name]), locate=None
        )
        address = _find_address(name, known[name])
        hosts.append(ServingHost(name, address, settings.port, gateways.count_requests(settings)))
    return hosts


def collect_host_settings(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a gateway takes from its first host unless it sets them itself."""
    names = _list_heads(variables)
    first = variables["hostvars"][names[0]] if names else {}
    return {name: first[name] for name in _OF_HOSTS if name in first and name not in variables}


def _list_members(variables: Mapping[str, Any], group: str) -> list[str]:
    return [str(name) for name in variables["groups"].get(group) or ()]


def _list_heads(variables: Mapping[str, Any]) -> list[str]:
    """Name the hosts that answer clients: of a group that serves one model, the head."""
    heads = group_hosts.find_heads(variables["groups"], variables["hostvars"])
    return [name for name in _list_members(variables, _SERVING) if heads.get(name, name) == name]


def _select_settings(variables: Mapping[str, Any]) -> dict[str, Any]:
    names = [n for n in variables if str(n).startswith("kimi_") and n not in INTERNAL]
    return {str(name): variables[name] for name in names}


def _find_folder(variables: Mapping[str, Any]) -> Path | None:
    folder = variables.get("inventory_dir")
    return Path(str(folder)) if folder else None


def _find_address(name: str, variables: Mapping[str, Any]) -> str:
    return str(variables.get("ansible_host") or name)
