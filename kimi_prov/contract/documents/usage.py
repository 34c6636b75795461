"""`kimi-prov/usage/v1`: the use of API keys."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Count, Day, KeyLimit, NotRequired

UsageBy = Literal["key", "day", "host"]


class Usage(TypedDict):
    """The use of each key.

    Days are in UTC. A host that was not reached has only ok and detail.
    """

    schema: Literal["kimi-prov/usage/v1"]
    ok: bool
    """false: a host was not reached, or an engine does not count."""
    since: str | None
    """First day; null for all."""
    until: str | None
    by: UsageBy
    rows: list[UsageRow]
    """Of all hosts: a row a key, a key and day, or a key and host, as `by` says."""
    hosts: dict[str, UsageOfHost]


class UsageRow(TypedDict):
    """The use of a key on all hosts."""

    day: NotRequired[Day]
    host: NotRequired[str]
    key: str
    """Its name."""
    requests: Count
    prompt_tokens: Count
    completion_tokens: Count
    refused: dict[KeyLimit, Count]
    """Requests that were refused, by the limit that refused them."""


class UsageOfHost(TypedDict):
    """The use of keys on one host."""

    ok: bool
    detail: str
    rows: NotRequired[list[UsageOfDay]]
    """A row a key and day."""
    uncounted: NotRequired[list[int]]
    """Instances whose engine started before it could count."""
    host_cache: NotRequired[HostCacheUse | None]
    """null where no cache in host memory is served, or no engine answers."""


class HostCacheUse(TypedDict):
    """What the cache in host memory gave back since the engines started, in tokens of prompts."""

    queried_tokens: Count
    """Not in the GPUs' cache, and looked up in host memory."""
    found_tokens: Count


class UsageOfDay(TypedDict):
    """The use of a key on one day."""

    day: Day
    last_at: Count
    """Last use on that day, in seconds since 1970; 0 where all requests were refused."""
    key: str
    """Its name."""
    requests: Count
    prompt_tokens: Count
    completion_tokens: Count
    refused: dict[KeyLimit, Count]
    """Requests that were refused, by the limit that refused them."""
