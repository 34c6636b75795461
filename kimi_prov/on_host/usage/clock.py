"""The counter's clock: days in UTC by the machine's clock, which may jump.

A limit of a day holds for a day of the steady clock, whatever the machine's clock says: where that
jumps into another day, ahead or back, the use of the day that it left counts for as long as that
day would have lasted.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Callable

from kimi_prov.on_host.usage.windows import DAY_S

# Seconds by which a clock is corrected without a jump.
_JUMP_S = 30.0


def format_day(at: float) -> str:
    """Return the day of a time, as 2026-11-24."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d")


def read_boot_seconds() -> float:
    """Return seconds since the boot, those of a suspended machine included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """The machine's clock; it does not repeat a day that was deleted.

    If the machine's clock is set back by up to a day, this one runs at half the speed until the
    machine's clock has caught up. If the clock is set back by more than a day, it had been wrong
    before, and the new time is used.
    """

    def __init__(
        self,
        latest: float = 0.0,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = read_boot_seconds,
        since: float | None = None,
    ) -> None:
        """Go on from `latest`, at `since` of the steady clock; None: of another boot."""
        self._wall, self._steady = wall, steady
        self._known = since is not None
        self._at, self._since = latest, steady() if since is None else since
        # Days that count as well, until that time of the steady clock.
        self.held: set[str] = set()
        self.held_until = 0.0

    def steady(self) -> float:
        """Return seconds of the steady clock."""
        return self._steady()

    def now(self) -> float:
        """Return seconds since 1970."""
        wall, steady = self._wall(), self._steady()
        before, passed = self._at, steady - self._since
        behind = before + passed - wall
        self._at = max(wall, before + passed / 2) if 0 < behind <= DAY_S else wall
        if self._known and (behind > DAY_S or behind < -_JUMP_S):
            self._hold(before + passed, steady)
        self._since, self._known = steady, True
        return self._at

    def _hold(self, left: float, steady: float) -> None:
        """Let the day that the clock left at `left` count for as long as it would have lasted."""
        days = {format_day(left), format_day(self._at)}
        if len(days) == 1:
            return
        if steady >= self.held_until:
            self.held, self.held_until = set(), steady + DAY_S - left % DAY_S
        self.held |= days

    def list_days(self, now: float) -> list[str]:
        """Return the days whose use counts for limits of a day at the time `now`."""
        held = self.held if self._since < self.held_until else set()
        return sorted({format_day(now), *held})

    def seconds_of_day(self, now: float) -> float:
        """Return how much is over of the day whose use counts."""
        left = self.held_until - self._since
        return DAY_S - min(left, DAY_S) if left > 0 else now % DAY_S
