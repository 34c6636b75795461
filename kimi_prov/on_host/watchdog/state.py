"""What the watchdog has seen and done, kept over its own restarts; and its metrics.

One file, written at each change: `status` and `diagnose` read it too.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.system.files import make_directory, read_json, read_text, write_atomic
from kimi_prov.on_host.system.files import write_json as write_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.status.machine import MemoryEnd
    from kimi_prov.contract.paths import Paths

# Number of hangs that are remembered.
_MAX_HANGS = 20
HOUR_S = 3600.0
# A time of ten digits, in the year 2286.
_MAX_TIME_S = 1e10
RESTARTED, LEFT, GROUP = "restarted", "left alone", "left to the group"
_ID = re.compile(r"diagnose\.[a-z0-9_]+\Z")
_COUNTS = ("probes", "hangs", "restarts")
_HELP = {
    "probes": "Test requests of the watchdog to an engine.",
    "hangs": "Hangs of an engine.",
    "restarts": "Restarts of an engine by the watchdog.",
}


class Record:
    """The watchdog's memory; engines are named by their unit, in metrics by their index.

    A change is known at once, and on the disk after `keep`.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._changed = False
        found = read_json(paths.watchdog_state)
        self.hangs: list[dict[str, Any]] = [
            row for row in found.get("last") or [] if isinstance(row, dict)
        ]
        self._counts: dict[str, dict[str, int]] = {
            name: {
                str(unit): count
                for unit, count in _as_mapping(found.get(name)).items()
                if isinstance(count, int)
            }
            for name in _COUNTS
        }

        self._memory_ends = _parse_times(found.get("memory_ended"))

    def memory_ended(self, unit: str, at: float) -> bool:
        """Record when an engine was ended by its memory limit; True where that is news."""
        news = self._memory_ends.get(unit) != at
        self._memory_ends[unit] = at
        self._changed = self._changed or news
        return news

    def probe(self, unit: str) -> None:
        """Count a question of our own."""
        self._count("probes", unit)

    def hang(self, unit: str, row: Mapping[str, Any]) -> None:
        """Record that an engine hangs; `row` says why, since when, and what is done."""
        self._count("hangs", unit)
        if row["done"] == RESTARTED:
            self._count("restarts", unit)
        self.hangs = [*self.hangs, {"unit": unit, "served_again_s": None, **row}][-_MAX_HANGS:]
        self._changed = True

    def served_again(self, unit: str, seconds: float) -> None:
        """Record how many seconds after its last step an engine made progress."""
        for row in reversed(self.hangs):
            if row["unit"] == unit and row["served_again_s"] is None:
                row["served_again_s"] = round(seconds, 1)
                self._changed = True
                return

    def last_of(self, unit: str) -> Mapping[str, Any] | None:
        """Return the last hang of an engine; None where there was none."""
        return next((row for row in reversed(self.hangs) if row.get("unit") == unit), None)

    def restarts_since(self, unit: str, when: float) -> int:
        """Count the restarts of an engine since a time, in seconds since 1970."""
        times = (row.get("time") for row in self.hangs if _was_restarted(row, unit))
        return sum(isinstance(at, (int, float)) and at >= when for at in times)

    def _count(self, name: str, unit: str) -> None:
        self._counts[name][unit] = self._counts[name].get(unit, 0) + 1
        self._changed = True

    def save(self) -> None:
        """Write the changes since the last time. Raises OSError; the caller then tries again."""
        if self._changed:
            document = {**self._counts, "last": self.hangs, "memory_ended": self._memory_ends}
            write_document(str(self._paths.watchdog_state), document, mode=0o600)
            self._changed = False

    def metrics(self, stalled: Mapping[str, bool], index: Mapping[str, int]) -> str:
        """Write the metrics of the engines in `index`: their numbers by their units."""
        lines: list[str] = []
        for name in _COUNTS:
            metric = f"kimi_watchdog_{name}_total"
            lines += [f"# HELP {metric} {_HELP[name]}", f"# TYPE {metric} counter"]
            lines += [
                f'{metric}{{engine="{number}"}} {self._counts[name].get(unit, 0)}'
                for unit, number in index.items()
            ]
        metric = "kimi_watchdog_stalled"
        lines += [
            f"# HELP {metric} 1 while requests wait for the engine and it makes no step.",
            f"# TYPE {metric} gauge",
        ]
        lines += [
            f'{metric}{{engine="{number}"}} {int(stalled.get(unit, False))}'
            for unit, number in index.items()
        ]
        metric = "kimi_watchdog_last_cause"
        lines += [
            f"# HELP {metric} 1 for the id of the cause that the logs of the last hang show.",
            f"# TYPE {metric} gauge",
        ]
        lines += [
            f'{metric}{{engine="{engine}",id="{cause}"}} 1'
            for unit, engine in index.items()
            if _ID.match(cause := str((self.last_of(unit) or {}).get("cause_id")))
        ]
        return "\n".join(lines) + "\n"


def publish(paths: Paths, text: str) -> None:
    """Write the metrics where they differ from the file."""
    if read_text(paths.watchdog_metrics) != text:
        if not paths.watchdog_metrics.parent.is_dir():
            make_directory(paths.watchdog_metrics.parent, 0o755)
        write_atomic(paths.watchdog_metrics, text, 0o644)


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _was_restarted(row: Mapping[str, Any], unit: str) -> bool:
    return row.get("unit") == unit and row.get("done") == RESTARTED


def find_last_hang(paths: Paths) -> dict[str, Any] | None:
    """Return the last hang; None where there was none."""
    hangs = read_json(paths.watchdog_state).get("last")
    found = hangs[-1] if isinstance(hangs, list) and hangs else None
    return found if isinstance(found, dict) else None


def list_memory_ends(paths: Paths) -> list[MemoryEnd]:
    """Return each engine that was ended by its memory limit, and when that was last."""
    ends = _parse_times(read_json(paths.watchdog_state).get("memory_ended"))
    return [{"unit": unit, "at": format_time(at)} for unit, at in sorted(ends.items())]


def _parse_times(value: object) -> dict[str, float]:
    """Return times by unit, in seconds since 1970; without what is none."""
    return {
        str(unit): float(at)
        for unit, at in _as_mapping(value).items()
        if isinstance(at, (int, float)) and 0 <= at < _MAX_TIME_S
    }


def format_time(at: float) -> str:
    """Write a time, in seconds since 1970, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
