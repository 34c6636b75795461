"""Lets the requests under way end before an engine stops, for every command that stops one.

HAProxy sends a drained engine no new request; the requests that it has go on. Without a proxy there
is nothing to drain: on a host of a group that does not serve itself.

Decides: what stops a machine on purpose, and what its clients get as an answer (draining).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable

from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.on_host.endpoint import haproxy

if TYPE_CHECKING:
    from collections.abc import Collection

    from kimi_prov.contract.documents.status.machine import EngineBehind
    from kimi_prov.contract.paths import Paths

# OUT: the engine answers no chat, so it is sent no requests; an operator's drain is another state.
DRAIN, READY, OUT = "drain", "ready", "maint"
_POLL_INTERVAL_S = 0.2


def drain(
    paths: Paths,
    limit_s: float,
    engines: Collection[int] | None = None,
    tell: Callable[[int], None] = lambda _: None,
    *,
    handed: bool = True,
) -> int:
    """Send no more requests to the engines, and wait until those under way have ended.

    They get `limit_s` seconds; return how many are left then. `engines`: only these instances.
    `tell` is called with the number that is waited for, where it changes. `handed`: count also the
    requests that kimi-wake passes on, whichever instance answers them. Raises HostError where the
    proxy does not answer.
    """
    if not paths.socket.exists():
        return 0
    until = time.monotonic() + limit_s
    set_state(paths, DRAIN, engines)
    told = -1
    while True:
        left = count_requests(paths, engines, handed=handed)
        if not left or time.monotonic() >= until:
            return left
        if left != told:
            tell(left)
            told = left
        time.sleep(_POLL_INTERVAL_S)


def count_requests(
    paths: Paths, engines: Collection[int] | None = None, *, handed: bool = True
) -> int:
    """Count the requests that engines are answering. Raises HostError where that is unknown.

    Requests that came while the machine was asleep go through kimi-wake to their end: they count as
    well.
    """
    try:
        held = {
            haproxy.parse_index(name): n for name, n in haproxy.count_requests(paths.socket).items()
        }
        own = sum(n for index, n in held.items() if engines is None or index in engines)
        return own + (haproxy.count_handed(paths.socket) if handed else 0)
    except OSError as error:
        raise _make_silent_error(error) from None


def set_state(paths: Paths, state: str, engines: Collection[int] | None = None) -> None:
    """Set the state of engines. Raises HostError where the proxy does not answer."""
    if not paths.socket.exists():
        return
    for index, _ in _list_engines(paths, engines):
        try:
            haproxy.set_state(paths.socket, index, state)
        except OSError as error:
            raise _make_silent_error(error) from None


def list_taken_out(paths: Paths) -> dict[int, str]:
    """Return the engines that are set to DRAIN or OUT. A reload of the proxy forgets this."""
    states = {state.upper(): state for state in (DRAIN, OUT)}
    try:
        rows = haproxy.list_servers(paths.socket)
    except OSError:
        # The proxy does not run, and has nothing to forget.
        return {}
    return {
        haproxy.parse_index(str(row["name"])): states[str(row["status"])]
        for row in rows
        if row["status"] in states
    }


def is_up(paths: Paths, engines: Collection[int] | None = None) -> bool:
    """Return whether the proxy would send a request to each of the engines."""
    return all(row["status"] == "UP" for _, row in _list_engines(paths, engines))


def _list_engines(paths: Paths, engines: Collection[int] | None) -> list[tuple[int, EngineBehind]]:
    try:
        found = haproxy.list_servers(paths.socket)
    except OSError as error:
        raise _make_silent_error(error) from None
    rows = [(haproxy.parse_index(str(row["name"])), row) for row in found]
    return [(index, row) for index, row in rows if engines is None or index in engines]


def _make_silent_error(error: OSError) -> HostError:
    return HostError(
        f"the proxy does not answer on its socket: {describe_error(error)}",
        f"check whether it runs: systemctl status {unit_names.PROXY}",
    )
