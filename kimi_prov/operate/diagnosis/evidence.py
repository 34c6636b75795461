"""What one machine gathered, as rules read it: masked already, and not to be trusted.

Decides: what `diagnose` recognises (what the rules read).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names
from kimi_prov.on_host.engine import metrics
from kimi_prov.on_host.system import units
from kimi_prov.runner import progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kimi_prov.runner.progress import LogEntry

_MAX_LENGTH = 300
# What our units write when the model has answered (on_host/engine/ready.py).
_READY = re.compile(r"ready after \d+ s")


@dataclass(frozen=True)
class Metrics:
    """Sums of an engine's counters, twice where requests ran: `apart_s` seconds lie between."""

    unit: str
    first: Mapping[str, float]
    second: Mapping[str, float] | None = None
    apart_s: float = 0.0
    state: metrics.State | None = None


@dataclass(frozen=True)
class Disk:
    """A file system, by a folder of ours there; bytes."""

    path: str
    size: int
    free: int


@dataclass(frozen=True)
class Hit:
    """The last line that a rule found, how many there were, and whether its cause is over."""

    entry: LogEntry
    count: int
    over: bool

    @property
    def observed(self) -> str:
        """Say where and when it was, and the line itself."""
        at = datetime.fromtimestamp(self.entry.time_us / 1e6, UTC)
        line = units.strip_log_prefix(" ".join(self.entry.message.split()))[:_MAX_LENGTH]
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.entry.unit}, {at:%Y-%m-%d %H:%M:%S} UTC: {line}{times}"


@dataclass(frozen=True)
class Evidence:
    """Everything that rules may look at; what could not be gathered is empty.

    `serving`: all that should run does. `down`: the units that should run and do not, but for
    those that start for the first time. `rest`: since when and why the machine does not serve on
    purpose, empty where it is to. `hangs`: what the watchdog kept, the newest first; of the
    last one `hang` says what came of it. `disks`: file systems that hold something of ours.
    `gateway`: the gateway's entry in the status; `split`: hosts that have its address as well.
    `failing`: the findings of the status about hardware.
    """

    plan: Mapping[str, object] = field(default_factory=dict)
    serving: bool = True
    down: tuple[str, ...] = ()
    rest: Mapping[str, Any] = field(default_factory=dict)
    logs: Mapping[str, tuple[LogEntry, ...]] = field(default_factory=dict)
    kernel: tuple[LogEntry, ...] = ()
    metrics: tuple[Metrics, ...] = ()
    hangs: tuple[Mapping[str, Any], ...] = ()
    hang: Mapping[str, Any] = field(default_factory=dict)
    disks: tuple[Disk, ...] = ()
    gateway: Mapping[str, Any] = field(default_factory=dict)
    split: str = ""
    failing: tuple[Mapping[str, object], ...] = ()

    def planned(self, *path: str) -> Any:  # noqa: ANN401  (what a machine's plan holds there)
        """Return what stands in the plan under these keys, None where one of them is not there."""
        value: Any = self.plan
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def figure(self, *path: str) -> float | None:
        """Return a number of the plan; None where there is none."""
        value = self.planned(*path)
        known = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if known else None

    def engines(self) -> Iterator[tuple[LogEntry, ...]]:
        """Give the journal of each engine."""
        for unit, entries in self.logs.items():
            if unit_names.is_serve(unit):
                yield entries

    def last(self, pattern: re.Pattern[str], least: int = 1) -> Hit | None:
        """Return an engine's last line that matches a pattern, None for fewer matches than `least`.

        It is over where the engine answered a chat after it.
        """
        hits = [hit for entries in self.engines() if (hit := _find_last(entries, pattern))]
        matching = [hit for hit in hits if hit.count >= least]
        return max(matching, key=lambda hit: hit.entry.time_us, default=None)

    def is_over(self, entry: LogEntry) -> bool:
        """Whether an engine answered a chat after a line of its own, or all after another line."""
        own = self.logs.get(entry.unit, ()) if unit_names.is_serve(entry.unit) else None
        journals = [own] if own is not None else list(self.engines())
        starts = [max(_find_ready_times(entries), default=0) for entries in journals]
        return bool(starts) and min(starts) > entry.time_us


def read_evidence(gathered: Mapping[str, Any], split: str = "") -> Evidence:
    """Read what a machine gathered; a value of an unexpected form counts as absent.

    `split`: what the documents of other hosts say about a gateway's address.
    """
    status = _read_mapping(gathered.get("status"))
    logs = {
        str(unit): progress.parse_entries(_read_mapping(log).get("entries"))
        for unit, log in _read_mapping(gathered.get("logs")).items()
    }
    return Evidence(
        plan=_read_mapping(gathered.get("plan")),
        serving=bool(status.get("ok")),
        down=tuple(
            name
            for name in _list_down_units(str(status.get("detail") or ""))
            if not _is_starting(_read_mapping(_read_mapping(gathered.get("units")).get(name)))
        ),
        rest=_read_rest(status),
        logs=logs,
        kernel=progress.parse_entries(_read_mapping(gathered.get("kernel")).get("entries")),
        metrics=tuple(_read_metrics(gathered.get("metrics"))),
        hangs=tuple(_read_rows(gathered.get("hangs"))),
        hang=_read_mapping(_read_mapping(status.get("watchdog")).get("last_hang")),
        disks=tuple(_read_disks(status.get("disks"))),
        gateway=_read_mapping(status.get("gateway")),
        split=split,
        failing=tuple(_read_rows(status.get("findings"))),
    )


def _read_rest(status: Mapping[str, Any]) -> Mapping[str, Any]:
    rest = _read_mapping(status.get("rest"))
    return {**rest, "told": str(status.get("detail"))} if rest.get("since") else {}


def _read_disks(rows: object) -> Iterator[Disk]:
    for row in rows if isinstance(rows, list) else ():
        disk = _read_mapping(row)
        size, free = disk.get("size_bytes"), disk.get("free_bytes")
        if isinstance(size, int) and isinstance(free, int):
            yield Disk(str(disk.get("path")), size, free)


def _list_down_units(detail: str) -> list[str]:
    """Return the units that a status names as not active, without the certificate's words."""
    _, mark, named = detail.partition("not active: ")
    return [name for name in re.split(r"[,;] ?", named) if unit_names.is_ours(name)] if mark else []


def _is_starting(unit: Mapping[str, Any]) -> bool:
    """Whether systemd starts a unit for the first time: a model loads for minutes."""
    return unit.get("ActiveState") == "activating" and unit.get("NRestarts") in (None, "", "0")


def _read_metrics(rows: object) -> Iterator[Metrics]:
    for row in rows if isinstance(rows, list) else ():
        reading = _read_mapping(row)
        first, second = reading.get("first"), reading.get("second")
        if isinstance(first, str) and first:
            later = metrics.sum_counts(second) if isinstance(second, str) and second else None
            apart = reading.get("apart_s")
            yield Metrics(
                str(reading.get("unit")),
                metrics.sum_counts(first),
                later,
                float(apart) if isinstance(apart, int | float) else 0.0,
                metrics.parse_state(first),
            )


def _read_rows(rows: object) -> Iterator[Mapping[str, Any]]:
    return (_read_mapping(row) for row in (rows if isinstance(rows, list) else ()))


def _find_last(entries: Iterable[LogEntry], pattern: re.Pattern[str]) -> Hit | None:
    entries = list(entries)
    matching = [entry for entry in entries if pattern.search(entry.message)]
    if not matching:
        return None
    over = any(at > matching[-1].time_us for at in _find_ready_times(entries))
    return Hit(matching[-1], len(matching), over)


def _find_ready_times(entries: Iterable[LogEntry]) -> Iterator[int]:
    return (entry.time_us for entry in entries if _READY.search(entry.message))


def _read_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
