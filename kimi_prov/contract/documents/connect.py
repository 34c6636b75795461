"""`kimi-prov/connect/v1`: how a served model is reached from this computer.

One server, of a rendered folder or a URL: `base_url` and the keys after it. Or an inventory: `ok`
and `hosts` by name, each with the keys of one server, also for a single host.
"""

from __future__ import annotations

from typing import Literal, TypedDict, Union

from kimi_prov.contract.documents.form import NotRequired


class ServerAddress(TypedDict):
    """The address of a server, and its key."""

    base_url: str
    """Base URL that an OpenAI client takes."""
    model: str
    """The model's name in requests."""
    certificate_file: str | None
    """The only certificate that a client must trust, PEM: the server's own, or the authority of
    --ca; null where the system's authorities are enough."""
    key_file: str | None
    """File of the API key, mode 0600 where this program wrote it; null where it is in KIMI_API_KEY,
    or none was given."""
    login: str | None
    """The ssh host of the tunnel; null without a tunnel."""
    job: str | None
    """The server's job; null without one."""
    node: str
    """The node that answers; for an inventory its host."""
    ends_at: str | None
    """End of the walltime, UTC, ISO 8601."""


class ReachedServer(ServerAddress):
    """A served host of an inventory, or the server of a URL."""

    ok: bool
    """Whether clients of this computer reach it, as far as that was tested."""
    detail: str
    """The reason, where they do not; else empty."""
    models: list[str]
    """All names of the model."""
    page_url: str | None
    """The web UI."""
    context: int | None
    """Tokens of one conversation."""
    engine: ServedEngine | None
    messages_api: bool | None
    """Whether the engine has Anthropic's API at /v1/messages; null where that is unknown."""
    answers: bool | None
    """Whether it returned its models for the key; null where no key was given."""
    resolve: ResolveName | None
    stand_ins: list[str]
    """What makes the answers meaningless: a lab host, random weights."""


class ServedEngine(TypedDict):
    """The engine, by the plan as applied; null for a URL."""

    name: str
    variant: str
    version: str


class ResolveName(TypedDict):
    """A name in the certificate that a client must resolve to another address.

    For curl --resolve, or a line in /etc/hosts.
    """

    name: str
    address: str
    port: int


class HostNotReached(TypedDict):
    """A host that clients do not use."""

    ok: bool
    """True for a member of a group that is not its head."""
    detail: str
    elsewhere: NotRequired[str]
    """The head of its group."""


class ConnectFolder(ServerAddress):
    """The server of a rendered folder."""

    schema: Literal["kimi-prov/connect/v1"]


class ConnectUrl(ReachedServer):
    """The server of a URL."""

    schema: Literal["kimi-prov/connect/v1"]


class ConnectHosts(TypedDict):
    """The hosts of an inventory, however many there are."""

    schema: Literal["kimi-prov/connect/v1"]
    ok: bool
    """Whether clients of this computer reach it, as far as that was tested."""
    hosts: dict[str, ReachedServer | HostNotReached]
    """By the inventory's names."""


Connect = Union[ConnectFolder, ConnectUrl, ConnectHosts]
