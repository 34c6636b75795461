"""Reads plans about gateways: the hosts behind one, and the gateways before a host."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kimi_prov.contract.errors import HostError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.documents.plan.gateway import GatewayPlan

SCHEMA: Final = "kimi-prov/gateway-plan/v1"
# Names of the keys of gateways: no client's key begins so.
KEY_PREFIX = "gateway."
# The TLS name under which the other gateway requests the one with the web UI. For this name it
# shows a certificate of its own, which no order and no renewal changes.
WEB_UI_NAME = "page.kimi.internal"
# The name in the certificate by which two gateways know each other.
PEERS_NAME = "peers.kimi.internal"
_MAX_NAME_LENGTH = 64
_OTHER = re.compile(r"[^A-Za-z0-9._-]")


def build_key_name(host: str) -> str:
    """Return the name of a gateway's key on the hosts behind it."""
    return (KEY_PREFIX + build_server_name(host))[:_MAX_NAME_LENGTH]


def build_server_name(host: str) -> str:
    """Return the name of a host of the inventory in a form for HAProxy and files."""
    return _OTHER.sub("_", host)


def is_gateway(plan: Plan) -> TypeIs[GatewayPlan]:
    """Return whether a plan is a gateway's."""
    return plan.get("schema") == SCHEMA


def list_gateways(plan: Plan) -> list[str]:
    """Return the names of the gateways before a host; none where clients reach it directly."""
    return [] if is_gateway(plan) else [row["host"] for row in plan.get("gateways") or ()]


def find_key_gateway(plan: Plan) -> str | None:
    """Return the gateway with the keys of a host or of another gateway; None for its own keys."""
    if list_gateways(plan):
        return list_gateways(plan)[0]
    if is_gateway(plan) and build_server_name(plan["gateway"]["first"]) != plan["gateway"]["name"]:
        return plan["gateway"]["first"]
    return None


def make_first_gateway_error(first: str, what: str) -> HostError:
    """Return the refusal of what only the first gateway can do."""
    return HostError(f"{first} answers clients: {what} there", f"run the command for {first}")
