"""What keys used on all machines behind a gateway together, and whether one may go on.

Each machine reports every second what it counted. A request that this gateway accepted counts at
once and for a minute, until a machine reports it: none counts twice, and a request that no machine
answered stops counting. A machine's last report stays until its next one, and its minute passes by
this clock.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import key_rules
from kimi_prov.on_host.usage import windows
from kimi_prov.on_host.usage.clock import format_day
from kimi_prov.on_host.usage.windows import MINUTE_S, Refusal, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class _Used:
    """One key at one machine: the last minute by our steady clock, and its day so far."""

    minute: tuple[Row, ...]
    day: tuple[int, int]


@dataclass(frozen=True)
class _Told:
    """A machine's report: its day, and what was used by key."""

    day: str
    keys: Mapping[str, _Used]


class Pool:
    """The sums. Machines report from their own threads; `wall` is called by the caller's thread."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        days: Callable[[], list[str]] | None = None,
    ) -> None:
        """Count by `wall`; `days`: those that count for limits of a day, today alone without."""
        self._wall, self._steady = wall, steady
        self._days = days or (lambda: [format_day(wall())])
        self._lock = threading.Lock()
        self._told: dict[str, _Told] = {}
        # Requests of the last minute that this gateway accepted, by key and second.
        self._own: dict[str, dict[int, int]] = {}

    def update(self, machine: str, document: Mapping[str, Any]) -> None:
        """Store a machine's report. Raises ValueError, KeyError or TypeError for a bad one.

        A wrong clock matters to its day alone: its minute is reported as seconds ago.
        """
        now = self._steady()
        keys = {
            _require_name(key): _Used(
                tuple(
                    (now - _require_number(ago), _require_number(r), _require_number(t))
                    for ago, r, t in row["minute"]
                ),
                _read_day(row["day"]),
            )
            for key, row in dict(document["keys"]).items()
        }
        with self._lock:
            self._told[machine] = _Told(str(document["day"]), keys)

    def retain(self, machines: Iterable[str]) -> None:
        """Forget the reports of machines that are no longer behind this gateway."""
        wanted = set(machines)
        with self._lock:
            self._told = {name: told for name, told in self._told.items() if name in wanted}

    def ask(self, key: str, limits: Mapping[str, int], under_way: int = 0) -> Refusal | None:
        """Accept a request of a key and count it, or return the limit that refuses it.

        `under_way`: how many other requests of the key this gateway has sent or let wait.
        """
        now, wall = self._steady(), self._wall()
        with self._lock:
            own = {at: n for at, n in self._own.get(key, {}).items() if at > int(now) - MINUTE_S}
            self._own[key] = own
            rows, used = self._sum(key, now, self._days())
            let_in: list[Row] = [(at, n, 0) for at, n in sorted(own.items())]
            untold = windows.find_newest(let_in, sum(own.values()) - sum(row[1] for row in rows))
            refusal = windows.find_longest(
                [
                    *windows.check_minute(rows, limits, now),
                    *windows.check_minute(let_in, limits, now),
                    *windows.check_day(used, limits, wall),
                    *windows.check_unconfirmed_day(used, untold, limits, now),
                    *windows.check_parallel(under_way, limits),
                ]
            )
            if refusal is None:
                own[int(now)] = own.get(int(now), 0) + 1
        return refusal

    def _sum(self, key: str, now: float, days: list[str]) -> tuple[list[Row], tuple[int, int]]:
        rows: list[Row] = []
        requests = tokens = 0
        for told in self._told.values():
            used = told.keys.get(key)
            if used is None:
                continue
            rows += [row for row in used.minute if row[0] > now - MINUTE_S]
            if told.day in days:
                requests, tokens = requests + used.day[0], tokens + used.day[1]
        return sorted(rows), (requests, tokens)


def _read_day(row: Any) -> tuple[int, int]:  # noqa: ANN401  (a machine's report)
    requests, tokens = row
    return _require_number(requests), _require_number(tokens)


def _require_number(value: object) -> int:
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not 0 <= value <= key_rules.MAX_LIMIT
    ):
        raise ValueError("no number")
    return value


def _require_name(value: object) -> str:
    if not isinstance(value, str) or len(value) > 64:
        raise ValueError("no name")
    return value
