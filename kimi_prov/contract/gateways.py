"""What plans say of gateways: of the hosts behind one, and of the gateways before a host."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kimi_prov.contract.errors import HostError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.documents.plan.gateway import GatewayPlan

SCHEMA: Final = "kimi-prov/gateway-plan/v1"
# Names of the keys by which gateways come in: no client's begins so.
KEY_PREFIX = "gateway."
# By this name the other gateway asks the one that has the page, which shows it another certificate
# than to clients: one that no order and no renewal changes.
WEB_UI_NAME = "page.kimi.internal"
_MAX_NAME_LENGTH = 64
_OTHER = re.compile(r"[^A-Za-z0-9._-]")


def build_key_name(host: str) -> str:
    """Name the key of a gateway on the hosts behind it."""
    return (KEY_PREFIX + build_server_name(host))[:_MAX_NAME_LENGTH]


def build_server_name(host: str) -> str:
    """Name a host of the inventory as HAProxy, and a file, can have it."""
    return _OTHER.sub("_", host)


def is_gateway(plan: Plan) -> TypeIs[GatewayPlan]:
    """Whether a plan is a gateway's."""
    return plan.get("schema") == SCHEMA


def list_gateways(plan: Plan) -> list[str]:
    """Name the gateways before a host; none where clients reach it itself."""
    return [] if is_gateway(plan) else [row["host"] for row in plan.get("gateways") or ()]


def find_key_gateway(plan: Plan) -> str | None:
    """Name the gateway that has the keys of a host or of another gateway; None for one's own."""
    if list_gateways(plan):
        return list_gateways(plan)[0]
    if is_gateway(plan) and build_server_name(plan["gateway"]["first"]) != plan["gateway"]["name"]:
        return plan["gateway"]["first"]
    return None


def make_first_gateway_error(first: str, what: str) -> HostError:
    """Return the refusal of what the first gateway alone can do."""
    return HostError(f"{first} answers clients: {what} there", f"run the command for {first}")
