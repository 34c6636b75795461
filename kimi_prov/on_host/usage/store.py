"""The counter's database: requests and tokens by key and day, and of the last minute.

Days are in UTC. The database holds no question, no answer and no client's address.

Decides: what an API key may do: expiry and limits (the limits; the proxy holds the expiry).
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from typing import (
    TYPE_CHECKING,
    Any,
    cast,
)

from kimi_prov.contract.key_rules import LIMITS
from kimi_prov.on_host.usage import windows
from kimi_prov.on_host.usage.clock import Clock, format_day
from kimi_prov.on_host.usage.windows import DAY_S, MINUTE_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from kimi_prov.contract.documents.usage import UsageOfDay
    from kimi_prov.on_host.usage.windows import Refusal

SCHEMA = 1
# Seconds after its end for which a request is known by its id: what is reported twice counts once.
KNOWN_S = 900
# Days are deleted by a clock that runs at most this many times as fast as the counter. So a clock
# that is years ahead deletes a day of the history in an hour, not all of it at once; a machine that
# was off for two months catches up in three days.
_FORGETS = 24
# The row of a key over all days, deleted ones included.
EVER = ""
_TABLES = """
CREATE TABLE IF NOT EXISTS used (
    key TEXT NOT NULL, day TEXT NOT NULL, requests INTEGER NOT NULL DEFAULT 0,
    prompt_tokens INTEGER NOT NULL DEFAULT 0, completion_tokens INTEGER NOT NULL DEFAULT 0,
    last_at INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (key, day)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refused (
    key TEXT NOT NULL, day TEXT NOT NULL, reason TEXT NOT NULL,
    requests INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (key, day, reason)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS minute (
    key TEXT NOT NULL, second INTEGER NOT NULL, requests INTEGER NOT NULL DEFAULT 0,
    tokens INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (key, second)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS request (
    id TEXT PRIMARY KEY, told_at INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL DEFAULT 0,
    completion_tokens INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS clock (one INTEGER PRIMARY KEY CHECK (one = 1), latest INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS boot (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL,
    steady REAL NOT NULL, held_until REAL NOT NULL, held TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS forgets (one INTEGER PRIMARY KEY CHECK (one = 1), at INTEGER NOT NULL);
"""
_USED = """
INSERT INTO used (key, day, requests, prompt_tokens, completion_tokens, last_at)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key, day) DO UPDATE SET
    requests = requests + excluded.requests,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens,
    last_at = max(last_at, excluded.last_at)
"""
_REFUSED = """
INSERT INTO refused (key, day, reason, requests) VALUES (?, ?, ?, 1)
ON CONFLICT (key, day, reason) DO UPDATE SET requests = requests + 1
"""
_MINUTE = """
INSERT INTO minute (key, second, requests, tokens) VALUES (?, ?, ?, ?)
ON CONFLICT (key, second) DO UPDATE SET
    requests = requests + excluded.requests, tokens = tokens + excluded.tokens
"""
# From a backup: the larger sum of all days counts, so that restoring it twice adds nothing.
_KEPT = """
INSERT INTO used (key, day, requests, prompt_tokens, completion_tokens, last_at)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key, day) DO UPDATE SET
    requests = max(requests, excluded.requests),
    prompt_tokens = max(prompt_tokens, excluded.prompt_tokens),
    completion_tokens = max(completion_tokens, excluded.completion_tokens),
    last_at = max(last_at, excluded.last_at)
"""
_KEPT_REFUSED = """
INSERT INTO refused (key, day, reason, requests) VALUES (?, ?, ?, ?)
ON CONFLICT (key, day, reason) DO UPDATE SET requests = max(requests, excluded.requests)
"""
_LAST_MINUTE = """
SELECT second, requests, tokens FROM minute WHERE key = ? AND second BETWEEN ? AND ? ORDER BY second
"""
# `days`: of JSON.
_DAYS_SO_FAR = """
SELECT key, sum(requests), sum(prompt_tokens + completion_tokens) FROM used
WHERE day IN (SELECT value FROM json_each(:days)) AND (:key IS NULL OR key = :key) GROUP BY key
"""
_COLUMNS = ("requests", "prompt_tokens", "completion_tokens", "last_at")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Names of keys that are counted: an engine's user could make up more and fill the disk with them.
MAX_NAMES = 10_000
_DAY = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})?")


def _find_last_minute(now: float) -> tuple[int, int]:
    """Return the first and the last second of the last minute."""
    return int(now) - MINUTE_S + 1, int(now)


class Store:
    """The database, opened by its only writer."""

    def __init__(
        self, path: Path, *, keep_days: int, clock: Clock | None = None, boot: str = ""
    ) -> None:
        """Open or make it. `boot`: identifies the start of the machine; empty where unknown."""
        self._db = sqlite3.connect(str(path), isolation_level=None)
        # A commit survives the end of this process; `settle` makes all commits survive a power cut.
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_TABLES)
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA:
            raise sqlite3.DatabaseError(f"a later version of kimi-prov made it ({version})")
        self._db.execute(f"PRAGMA user_version={SCHEMA}")
        self._keep_days = keep_days
        self._boot = boot
        self._names = {row[0] for row in self._db.execute("SELECT DISTINCT key FROM used")}
        latest = self._number("SELECT latest FROM clock")
        self._clock = clock or self._restore_clock(latest)
        # An earlier version deleted days by the machine's clock.
        forgets = self._number("SELECT at FROM forgets") or latest
        self._forgets = self._clock.now() if forgets is None else float(forgets)
        self._forgot = self._clock.steady()

    def require_name(self, key: object) -> str:
        """Return the name of a key. Raises ValueError for no name, or for one name too many."""
        if not isinstance(key, str) or not _NAME.fullmatch(key):
            raise ValueError("no name of a key")
        if key not in self._names:
            if len(self._names) >= MAX_NAMES:
                raise ValueError(f"more than {MAX_NAMES} names of keys")
            self._names.add(key)
        return key

    def _restore_clock(self, latest: int | None) -> Clock:
        """Return the clock of an earlier process, or a new one after a boot."""
        row = self._db.execute("SELECT id, steady, held_until, held FROM boot").fetchone()
        if latest is None or row is None or not self._boot or row[0] != self._boot:
            return Clock(float(latest or 0))
        clock = Clock(float(latest), since=float(row[1]))
        clock.held, clock.held_until = set(json.loads(row[3])), float(row[2])
        return clock

    def _number(self, question: str) -> int | None:
        row = self._db.execute(question).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        """Close the database; everything is then in its one file."""
        self._db.close()

    def ask(
        self, request: str, key: str, limits: Mapping[str, int], under_way: int = 0
    ) -> Refusal | None:
        """Accept a request of a key and count it, or return the limit that refuses it.

        `under_way`: how many other requests of the key are.
        """
        now = self._clock.now()
        with self._transaction():
            # The request is known: the answer to the same question was lost.
            known = self._request(request)
            refusal = None if known else self._find_refusal(key, limits, now, under_way)
            if refusal:
                for day in (format_day(now), EVER):
                    self._db.execute(_REFUSED, (key, day, refusal.reason))
            else:
                self._begin(request, key, now)
        return refusal

    def check(self, key: str, limits: Mapping[str, int], under_way: int = 0) -> Refusal | None:
        """Return the limit that refuses a request of a key now; count nothing."""
        return self._find_refusal(key, limits, self._clock.now(), under_way)

    def tell(self, request: str, key: str, prompt: int, completion: int, *, ended: bool) -> None:
        """Add what a request has used so far; a report that comes twice counts once.

        A request that was never asked for began while the counter was away, and counts from now on.
        """
        now = self._clock.now()
        with self._transaction():
            row = self._request(request)
            if row is None:
                self._begin(request, key, now)
                row = (0, 0, 0)
            more_prompt, more_completion = max(prompt - row[0], 0), max(completion - row[1], 0)
            if row[2]:
                return
            self._db.execute(
                "UPDATE request SET told_at = ?, prompt_tokens = prompt_tokens + ?, "
                "completion_tokens = completion_tokens + ?, ended = ? WHERE id = ?",
                (int(now), more_prompt, more_completion, int(ended), request),
            )
            if more_prompt or more_completion:
                self._add(key, now, 0, more_prompt, more_completion)

    def _begin(self, request: str, key: str, now: float) -> None:
        begun = self._db.execute(
            "INSERT OR IGNORE INTO request (id, told_at) VALUES (?, ?)", (request, int(now))
        )
        if begun.rowcount:
            self._add(key, now, 1, 0, 0)

    def _request(self, request: str) -> tuple[int, int, int] | None:
        found = self._db.execute(
            "SELECT prompt_tokens, completion_tokens, ended FROM request WHERE id = ?", (request,)
        )
        row: tuple[int, int, int] | None = found.fetchone()
        return row

    def _add(self, key: str, now: float, requests: int, prompt: int, completion: int) -> None:
        for day in (format_day(now), EVER):
            self._db.execute(_USED, (key, day, requests, prompt, completion, int(now)))
        self._db.execute(_MINUTE, (key, int(now), requests, prompt + completion))

    def _find_refusal(
        self, key: str, limits: Mapping[str, int], now: float, under_way: int
    ) -> Refusal | None:
        """Return the limit that blocks a key the longest; None where it may ask."""
        found = [*self._check_minute(key, limits, now), *self._check_day(key, limits, now)]
        return windows.find_longest([*found, *windows.check_parallel(under_way, limits)])

    def _check_minute(self, key: str, limits: Mapping[str, int], now: float) -> Iterator[Refusal]:
        if {"requests_per_minute", "tokens_per_minute"} & set(limits):
            rows = self._db.execute(_LAST_MINUTE, (key, *_find_last_minute(now))).fetchall()
            yield from windows.check_minute(rows, limits, now)

    def _check_day(self, key: str, limits: Mapping[str, int], now: float) -> Iterator[Refusal]:
        if {"requests_per_day", "tokens_per_day"} & set(limits):
            used = self._count_day(now, key).get(key, (0, 0))
            yield from windows.check_day(used, limits, self._clock.seconds_of_day(now))

    def _count_day(self, now: float, key: str | None = None) -> dict[str, tuple[int, int]]:
        """Return requests and tokens that count for limits of a day, by key."""
        days = json.dumps(self._clock.list_days(now))
        rows = self._db.execute(_DAYS_SO_FAR, {"days": days, "key": key})
        return {name: (requests, tokens) for name, requests, tokens in rows}

    def recent(self) -> dict[str, Any]:
        """Return what keys used today and in the last minute, for a gateway.

        {"now": seconds since 1970, "day", "keys": {name: {"day": [requests, tokens], "minute":
        [[seconds ago, requests, tokens], ...]}}}; a key without requests today is left out.
        """
        now = self._clock.now()
        day = format_day(now)
        keys: dict[str, dict[str, Any]] = {}
        for key, used in self._count_day(now).items():
            keys[key] = {"day": list(used), "minute": []}
        rows = self._db.execute(
            "SELECT key, second, requests, tokens FROM minute WHERE second BETWEEN ? AND ? "
            "ORDER BY second",
            _find_last_minute(now),
        )
        for key, second, requests, tokens in rows:
            row = keys.setdefault(key, {"day": [0, 0], "minute": []})
            row["minute"].append([int(now) - second, requests, tokens])
        # The machine's own clock, even if it was set back: a gateway compares it with its own.
        return {"now": round(time.time(), 3), "day": day, "keys": keys}

    def now(self) -> float:
        """Return seconds since 1970 by the counter's clock."""
        return self._clock.now()

    def list_days(self) -> list[str]:
        """Return the days whose use counts for limits of a day now."""
        return self._clock.list_days(self._clock.now())

    def refuse(self, key: str, reason: str) -> None:
        """Count a refusal that a gateway decided over several machines."""
        with self._transaction():
            for day in (format_day(self.now()), EVER):
                self._db.execute(_REFUSED, (key, day, reason))

    def settle(self) -> None:
        """Make the counts survive a power cut, and delete what is not needed any more."""
        now = self._clock.now()
        steady = self._clock.steady()
        self._forgets = min(now, self._forgets + _FORGETS * (steady - self._forgot))
        self._forgot = steady
        first = datetime.fromtimestamp(self._forgets, timezone.utc) - timedelta(self._keep_days)
        with self._transaction():
            self._db.execute(
                "INSERT INTO clock (one, latest) VALUES (1, ?) "
                "ON CONFLICT (one) DO UPDATE SET latest = excluded.latest",
                (int(now),),
            )
            self._db.execute(
                "INSERT OR REPLACE INTO boot (one, id, steady, held_until, held) "
                "VALUES (1, ?, ?, ?, ?)",
                (self._boot, steady, self._clock.held_until, json.dumps(sorted(self._clock.held))),
            )
            self._db.execute(
                "INSERT INTO forgets (one, at) VALUES (1, ?) "
                "ON CONFLICT (one) DO UPDATE SET at = excluded.at",
                (int(self._forgets),),
            )
            # A clock that was far ahead left rows of the future.
            self._db.execute(
                "DELETE FROM minute WHERE second NOT BETWEEN ? AND ?", _find_last_minute(now)
            )
            self._db.execute("UPDATE request SET told_at = ?1 WHERE told_at > ?1", (int(now),))
            self._db.execute(
                "DELETE FROM request WHERE told_at < ? AND (ended OR told_at < ?)",
                (int(now) - KNOWN_S, int(now) - DAY_S),
            )
            for table in ("used", "refused"):
                self._db.execute(
                    f"DELETE FROM {table} WHERE day != ? AND day <= ?",  # noqa: S608 - of two names
                    (EVER, first.strftime("%Y-%m-%d")),
                )
        self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the body as one transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def rows(self, since: str = "", until: str = "9999") -> list[UsageOfDay]:
        """Return the same rows as `read_rows`."""
        return read_rows(self._db, since, until)


def read_rows(db: sqlite3.Connection, since: str = "", until: str = "9999") -> list[UsageOfDay]:
    """Return a row a key and day from `since` to `until`, both included; `EVER` is a day as well.

    Each row: requests, prompt_tokens, completion_tokens, refused (by reason), last_at (unix or 0).
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    used = db.execute(
        "SELECT key, day, requests, prompt_tokens, completion_tokens, last_at FROM used "
        "WHERE day BETWEEN ? AND ?",
        (since, until),
    )
    for key, day, *numbers in used:
        found[key, day] = {"key": key, "day": day, **dict(zip(_COLUMNS, numbers)), "refused": {}}
    refused = db.execute(
        "SELECT key, day, reason, requests FROM refused WHERE day BETWEEN ? AND ?", (since, until)
    )
    for key, day, reason, requests in refused:
        empty = dict.fromkeys(_COLUMNS, 0)
        row = found.setdefault((key, day), {"key": key, "day": day, **empty, "refused": {}})
        row["refused"][reason] = requests
    return [cast("UsageOfDay", found[name]) for name in sorted(found)]


def read(path: Path, since: str = "", until: str = "9999") -> list[UsageOfDay]:
    """Return `read_rows` of a database that another process writes; nothing where there is none.

    Raises sqlite3.Error for a file of another form.
    """
    if not path.exists():
        return []
    # Not `mode=ro`: a reader of a write-ahead log may have to create its index.
    with closing(sqlite3.connect(str(path), timeout=10)) as db:
        db.execute("PRAGMA query_only=ON")
        return read_rows(db, since, until)


def export_rows(path: Path) -> bytes:
    """Return the rows of all days as JSON, for a backup."""
    return json.dumps(read(path)).encode()


def parse_rows(rows: object) -> Iterator[dict[str, Any]]:
    """Parse rows of a backup. Raises ValueError, KeyError or TypeError for another form."""
    if not isinstance(rows, list):
        raise TypeError("no list")
    for row in rows:
        found = {name: row[name] for name in (*_COLUMNS, "key", "day", "refused")}
        if not isinstance(found["refused"], dict):
            raise TypeError("no refusals")
        numbers = [*(found[name] for name in _COLUMNS), *found["refused"].values()]
        if not all(type(number) is int and 0 <= number <= 1 << 62 for number in numbers):
            raise ValueError("no numbers")
        if not _NAME.fullmatch(found["key"]) or not _DAY.fullmatch(found["day"]):
            raise ValueError("no names")
        if not {*found["refused"]} <= {*LIMITS}:
            raise ValueError("no limits")
        yield found


def import_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows of a backup. A row of the same key and day that exists already stays."""
    with closing(sqlite3.connect(str(path), isolation_level=None, timeout=30)) as db:
        db.execute("BEGIN IMMEDIATE")
        for row in rows:
            name = (row["key"], row["day"])
            there = "SELECT 1 FROM used WHERE key = ? AND day = ?"
            if row["day"] != EVER and db.execute(there, name).fetchone():
                continue
            db.execute(_KEPT, (*name, *(row[column] for column in _COLUMNS)))
            for reason, requests in row["refused"].items():
                db.execute(_KEPT_REFUSED, (*name, reason, requests))
        db.execute("COMMIT")
