"""The keys of a machine as `key --list` shows them."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING

from kimi_prov.on_host.usage import store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import KeyEntry
    from kimi_prov.contract.paths import Paths
    from kimi_prov.on_host.keys.metadata import KeyMetadata


def list_keys(paths: Paths, keys: Mapping[str, str], key_metadata: KeyMetadata) -> list[KeyEntry]:
    """Return a row a key: name, made, ends, limits, last_used, and whether it has ended.

    Times are seconds since 1970, None where there is none, or it is not known.
    """
    now = time.time()
    try:
        last = {row["key"]: row["last_at"] for row in store.read(paths.usage_db, until=store.EVER)}
    except sqlite3.Error:
        last = {}
    found: list[KeyEntry] = []
    for name in sorted(keys):
        entry = key_metadata.get(name)
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
