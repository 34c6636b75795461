"""Lets the requests under way end before an engine stops: one way for every command that stops one.

HAProxy sends a drained engine no new request; those that it has go on. Without a proxy there is
nothing to drain: on a host that another serves for.

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

    from kimi_prov.contract.paths import Paths

# OUT: sent nothing, for it answers no chat; an operator's drain is told apart from it.
DRAIN, READY, OUT = "drain", "ready", "maint"
_PAUSE_S = 0.2


def drain(
    paths: Paths,
    limit_s: float,
    engines: Collection[int] | None = None,
    tell: Callable[[int], None] = lambda _: None,
    *,
    handed: bool = True,
) -> int:
    """Send no more requests to the engines, and wait until those under way have ended.

    They get `limit_s` seconds; returns how many are left then. `engines`: these instances alone.
    `tell` is called with the number that is waited for, where it changes. `handed`: with what
    kimi-wake hands on, whichever instance answers it. Raises HostError where the proxy does not
    answer.
    """
    if not paths.socket.exists():
        return 0
    until = time.monotonic() + limit_s
    balance(paths, DRAIN, engines)
    told = -1
    while True:
        left = under_way(paths, engines, handed=handed)
        if not left or time.monotonic() >= until:
            return left
        if left != told:
            tell(left)
            told = left
        time.sleep(_PAUSE_S)


def under_way(paths: Paths, engines: Collection[int] | None = None, *, handed: bool = True) -> int:
    """Count the requests that engines are answering. Raises HostError where nobody knows.

    What came while the machine was asleep goes through kimi-wake to its end: it counts as well.
    """
    try:
        held = {haproxy.index_of(name): n for name, n in haproxy.requests(paths.socket).items()}
        own = sum(n for index, n in held.items() if engines is None or index in engines)
        return own + (haproxy.handed(paths.socket) if handed else 0)
    except OSError as error:
        raise _silent(error) from None


def balance(paths: Paths, state: str, engines: Collection[int] | None = None) -> None:
    """Put engines into a state of the above. Raises HostError where the proxy does not answer."""
    if not paths.socket.exists():
        return
    for index, _ in _engines(paths, engines):
        try:
            haproxy.set_state(paths.socket, index, state)
        except OSError as error:
            raise _silent(error) from None


def taken_out(paths: Paths) -> dict[int, str]:
    """Return the engines that are sent nothing on purpose: DRAIN or OUT. A reload forgets it."""
    states = {state.upper(): state for state in (DRAIN, OUT)}
    try:
        rows = haproxy.servers(paths.socket)
    except OSError:
        # It does not run, and has nothing to forget.
        return {}
    return {
        haproxy.index_of(str(row["name"])): states[str(row["status"])]
        for row in rows
        if row["status"] in states
    }


def up(paths: Paths, engines: Collection[int] | None = None) -> bool:
    """Whether the proxy would send a request to each of the engines."""
    return all(row["status"] == "UP" for _, row in _engines(paths, engines))


def _engines(
    paths: Paths, engines: Collection[int] | None
) -> list[tuple[int, dict[str, str | int]]]:
    try:
        found = haproxy.servers(paths.socket)
    except OSError as error:
        raise _silent(error) from None
    rows = [(haproxy.index_of(str(row["name"])), row) for row in found]
    return [(index, row) for index, row in rows if engines is None or index in engines]


def _silent(error: OSError) -> HostError:
    return HostError(
        f"the proxy does not answer on its socket: {describe_error(error)}",
        f"check whether it runs: systemctl status {unit_names.PROXY}",
    )
