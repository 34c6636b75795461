"""`kimi-prov/usage/v1`: what API keys used."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Count, Day, KeyLimit, NotRequired


class Usage(TypedDict):
    """What each key used.

    Days are UTC's. A host that was not reached has ok and detail alone.
    """

    schema: Literal["kimi-prov/usage/v1"]
    ok: bool
    """false: a host was not reached, or an engine does not count."""
    since: str | None
    """First day; null for all."""
    until: str | None
    by: Literal["key", "day", "host"]
    rows: list[UsageRow]
    """Of all hosts: a row a key, a key and day, or a key and host, as `by` says."""
    hosts: dict[str, UsageOfHost]


class UsageRow(TypedDict):
    """What a key used on all hosts."""

    day: NotRequired[Day]
    host: NotRequired[str]
    key: str
    """Its name."""
    requests: Count
    prompt_tokens: Count
    completion_tokens: Count
    refused: dict[KeyLimit, Count]
    """Requests that were kept out, by the limit that did."""


class UsageOfHost(TypedDict):
    """What keys used on one host."""

    ok: bool
    detail: str
    rows: NotRequired[list[UsageOfDay]]
    """A row a key and day."""
    uncounted: NotRequired[list[int]]
    """Instances whose engine runs since before it could count."""


class UsageOfDay(TypedDict):
    """What a key used on one day."""

    day: Day
    last_at: Count
    """When it was used last on that day, in seconds since 1970; 0 where it only was refused."""
    key: str
    """Its name."""
    requests: Count
    prompt_tokens: Count
    completion_tokens: Count
    refused: dict[KeyLimit, Count]
    """Requests that were kept out, by the limit that did."""
