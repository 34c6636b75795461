"""The switch of hosts that serve one model together: each host has its own, and decides alone.

The new version serves only where all hosts have it, because hosts with different plans do not start
together. So the one verdict is whether the group serves: where it does not, each host rolls back,
at once where its engine ended or where the others have a different plan. The head reports verify
and the speed, but they cause no rollback.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import groups
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.group import lifecycle
from kimi_prov.on_host.history import engines, speed
from kimi_prov.on_host.system import apply_lock
from kimi_prov.on_host.system import group_state as supervision

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.paths import Paths

# Added to a verdict of the head, which is reported and causes no rollback.
STAYS = (
    "hosts that serve together go back by themselves only if nothing serves:  kimi-prov "
    "rollback INVENTORY  for all of them"
)
_POLL_INTERVAL_S = 1.0
# Seconds that a rank gives the head to measure, beside the drain, before the rank stops by itself.
_HEAD_S = 300.0
# Seconds: hosts that do not switch at the same moment differ for a while; after that one has rolled
# back.
_MAX_UNEQUAL_S = 180.0


def wait_for_head(paths: Paths, drain_s: float) -> None:
    """Let the head end the requests under way: a rank that stops first would cut them."""
    until = time.monotonic() + drain_s + _HEAD_S
    while supervision.read(paths.group_run).phase == supervision.SERVING:
        if time.monotonic() >= until:
            return
        apply_lock.renew()
        time.sleep(_POLL_INTERVAL_S)


class Apart:
    """Detects that a host is left alone: nothing starts, because other hosts have other plans."""

    def __init__(
        self,
        paths: Paths,
        plan: MachinePlan,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._where = paths.group_run if plan.get("group") else None
        self._since: float | None = None

    def watch(self, tell: engines.Tell) -> engines.Tell:
        """Return a function that checks it. In a rollback nothing is checked: the others follow."""

        def report(line: str) -> None:
            tell(line)
            self.check()

        return report

    def check(self) -> None:
        """Raise HostError where the plans have differed for long enough."""
        if self._where is None:
            return
        seen = supervision.read(self._where)
        if lifecycle.NOT_EQUAL in seen.said:
            now = self._clock()
            self._since = now if self._since is None else self._since
            if now - self._since >= _MAX_UNEQUAL_S:
                raise HostError(seen.said)
        elif seen.phase in (supervision.STARTING, supervision.SERVING):
            self._since = None


def verify_and_measure(
    paths: Paths, plan: MachinePlan, tell: engines.Tell
) -> tuple[dict[str, Any] | None, list[dict[str, Any]] | None, str | None]:
    """Verify and measure what a group serves, on its head.

    Returns the speed, the rows of verify, and what verify refused.
    """
    if not groups.serves_clients(plan):
        return None, None, None
    tell("verifying")
    rows, wrong = None, None
    try:
        rows = engines.verify(paths, plan)
    except HostError as error:
        wrong = error.message
    tell("measuring what serves now")
    return speed.measure(paths, plan), rows, wrong
