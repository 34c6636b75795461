"""The keys of a machine as `key --list` shows them, and which engines do not count yet."""

from __future__ import annotations

import http.client
import sqlite3
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping

from kimi_prov.contract import key_rules
from kimi_prov.on_host.usage import store

if TYPE_CHECKING:
    from kimi_prov.contract.paths import Paths
    from kimi_prov.on_host.gateway.key_book import Book

_TIMEOUT_S = 5.0


def rows(paths: Paths, keys: Mapping[str, str], book: Book) -> List[Dict[str, Any]]:
    """Return a row a key: name, made, ends, limits, last_used, and whether it has ended.

    Times are seconds since 1970, None where there is none, or it is not known.
    """
    now = time.time()
    try:
        last = {row["key"]: row["last_at"] for row in store.read(paths.usage_db, until=store.EVER)}
    except sqlite3.Error:
        last = {}
    found = []
    for name in sorted(keys):
        entry = book.get(name)
        ends = entry.rule.ends if entry else None
        found.append(
            {
                "name": name,
                "made": entry.made if entry else None,
                "ends": ends,
                "ended": ends is not None and ends <= now,
                "limits": dict(entry.rule.limits) if entry else {},
                "last_used": last.get(name) or None,
            }
        )
    return found


def uncounted(plan: Mapping[str, Any]) -> List[int]:
    """Return the instances whose engine runs since before it could count: limits miss them."""
    serving = [row for row in plan.get("instances") or () if row.get("port") is not None]
    return [int(row["index"]) for row in serving if _counts(row["port"]) is False]


def _counts(port: int) -> bool | None:
    """Whether the engine at a port counts; None where it does not answer."""
    engine = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        engine.request("GET", "/health")
        return engine.getresponse().getheader(key_rules.COUNTS_HEADER) is not None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        engine.close()
