"""What a client needs to know of one served model, however it is reached.

Decides: what `connect` says to clients, and its snippets.
Applied by: playbooks/connect.yml.
Held by: tests/component/commands/access/test_connect_snippets.py,
  tests/component/commands/access/test_connect_inventory.py,
  tests/unit/commands/access/test_certificate_hosts.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.contract import gateways
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Model, Usage
    from kimi_prov.contract.documents.plan import Plan


@dataclass(frozen=True)
class Resolve:
    """A name of the certificate that a client has to resolve to another address than DNS does."""

    name: str
    address: str
    port: int


@dataclass(frozen=True)
class Server:
    """A served model as its clients see it; None is unknown, or not needed.

    `certificate_file`: the only certificate to trust; None where the system's authorities will do.
    `key_file`: the file of the API key; None where KIMI_API_KEY holds it. `key_hint`: how to get a
    key. `context`: tokens of one conversation. `sees`: whether the model takes images.
    """

    base_url: str
    model: str
    certificate_file: str | None = None
    key_file: str | None = None
    key_hint: str | None = None
    context: int | None = None
    engine: str | None = None
    messages_api: bool | None = None
    usage: Usage | None = None
    sees: bool | None = None
    resolve: Resolve | None = None

    @property
    def root_url(self) -> str:
        """The base URL for clients of Anthropic's API."""
        return self.base_url.removesuffix("/v1")

    @property
    def thinks(self) -> bool:
        """Whether an answer has reasoning unless a request turns it off."""
        return self.usage is None or self.usage.thinking != "never"

    @property
    def switches(self) -> bool:
        """Whether a request may turn the reasoning off; true if unknown."""
        return self.usage is None or self.usage.thinking == "optional"


def find_model(name: str) -> Model | None:
    """Return the catalogue's row of a model by its name or alias; None where there is none."""
    try:
        return load_catalogue().model(name.rpartition("/")[2].lower())
    except UserError:
        return None


def describe_server(plan: Plan, certificate: str) -> dict[str, Any]:
    """Return what clients need of a plan as applied, with the public certificate. Pure.

    A host of a group that is not its head serves no client: {"elsewhere": the head}. The same holds
    for a host `behind` gateways, whose document is otherwise complete, and for a second gateway. A
    gateway has no engine; `shared` is its address for clients.
    """
    group = plan.get("group")
    if group and group["rank"]:
        return {"elsewhere": group["members"][0]["host"], "behind": False}
    first = gateways.find_key_gateway(plan)
    if first and gateways.is_gateway(plan):
        return {"elsewhere": first, "behind": True}
    model, proxy, web = plan["model"], plan["proxy"], plan.get("web")
    shared, context, engine = None, None, None
    if gateways.is_gateway(plan):
        shared = plan["gateway"]["address"]
    elif own := plan.get("engine"):
        context = plan["model"]["context"]
        engine = {"name": own["name"], "variant": own["variant"], "version": own["version"]}
    return {
        "elsewhere": first,
        "behind": first is not None,
        "shared": shared,
        "port": proxy["port"],
        "page_port": web["port"] if web else None,
        "allowed_networks": list(proxy["allowed_networks"]),
        "certificate": certificate,
        "model": model["served_names"][0],
        "models": list(model["served_names"]),
        "catalog_name": model["name"],
        "context": context,
        "engine": engine,
    }
