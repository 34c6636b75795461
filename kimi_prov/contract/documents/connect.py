"""`kimi-prov/connect/v1`: where a served model is reached from this computer.

One server, of a rendered folder or a URL: `base_url` and what follows it. Or an inventory: `ok` and
`hosts` by name, each with the keys of one server, however many there are.
"""

from __future__ import annotations

from typing import Literal, TypedDict, Union

from kimi_prov.contract.documents.form import NotRequired


class ServerAddress(TypedDict):
    """Where a server is reached, and by which key."""

    base_url: str
    """Base URL that an OpenAI client takes."""
    model: str
    """Name to ask for."""
    certificate_file: str | None
    """What a client is to trust and nothing else, PEM: the server's own certificate, or the
    authority of --ca; null where the system's authorities do."""
    key_file: str | None
    """File of the API key, mode 0600 where this program wrote it; null where KIMI_API_KEY has it,
    or none was given."""
    login: str | None
    """Host of ssh that the tunnel goes through; null without a tunnel."""
    job: str | None
    """The server's job; null where none is."""
    node: str
    """The node that answers; of an inventory its host."""
    ends_at: str | None
    """End of the walltime, UTC, ISO 8601."""


class ReachedServer(ServerAddress):
    """A served host of an inventory, or the server of a URL."""

    ok: bool
    """Whether clients of this computer get through, as far as that was asked."""
    detail: str
    """Why not; empty where they do."""
    models: list[str]
    """All names that are served."""
    page_url: str | None
    """The page to talk to the model."""
    context: int | None
    """Tokens of one conversation."""
    engine: ServedEngine | None
    messages_api: bool | None
    """Whether the engine has Anthropic's API at /v1/messages; null where that is not known."""
    answers: bool | None
    """Whether it answered with its models to the key; null where no key was given."""
    resolve: ResolveName | None
    stand_ins: list[str]
    """What is not the real thing: a lab host, random weights."""


class ServedEngine(TypedDict):
    """The engine, by the plan as applied; null of a URL."""

    name: str
    variant: str
    version: str


class ResolveName(TypedDict):
    """A name of the certificate that a client has to find at another address.

    For curl --resolve, or a line in /etc/hosts.
    """

    name: str
    address: str
    port: int


class HostNotReached(TypedDict):
    """A host that no client reaches."""

    ok: bool
    """True of a group's member that is not its head."""
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
    """Whether clients of this computer get through, as far as that was asked."""
    hosts: dict[str, ReachedServer | HostNotReached]
    """By the inventory's names."""


Connect = Union[ConnectFolder, ConnectUrl, ConnectHosts]
