"""`usage [SINCE UNTIL]`: what each key used, a row a key and day; one JSON object."""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING

from kimi_prov.contract import groups
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import PLAN, USAGE_DB, Paths
from kimi_prov.on_host.system import plans
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.usage import counting, host_cache, store

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.documents.usage import UsageOfDay, UsageOfHost

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
# The first is before every day, the second after the row of all days.
MIN_DAY = "0000-00-00"
MAX_DAY = "9999-99-99"


def collect(paths: Paths, since: str = MIN_DAY, until: str = MAX_DAY) -> UsageOfHost:
    """Return the usage document of this host, days from `since` to `until`, both included."""
    plan = plans.read_plan(paths.plan)
    if not plan:
        return {"ok": False, "detail": f"not provisioned: no {PLAN}", "rows": []}
    if not groups.serves_clients(plan):
        return {
            "ok": True,
            "detail": groups.make_head_only_error(plan, "its use is").message,
            "rows": [],
            "uncounted": [],
        }
    missing = counting.find_uncounted(plan)
    rows = _read_rows(paths.usage_db, since, until)
    detail = f"{len({row['key'] for row in rows})} keys" if rows else "nothing was used"
    if missing:
        told = ", ".join(map(str, missing))
        detail = f"engine {told} runs since before it could count: restart it"
    return {
        "ok": not missing,
        "detail": detail,
        "rows": rows,
        "uncounted": missing,
        "host_cache": host_cache.measure_use(plan),
    }


def _read_rows(database: Path, since: str, until: str) -> list[UsageOfDay]:
    try:
        return store.read(database, max(since, MIN_DAY), until)
    except sqlite3.Error as error:
        raise HostError(
            f"{USAGE_DB} cannot be read: {error}", "read the journal: journalctl -u kimi-usage"
        ) from error


def main(argv: list[str]) -> int:
    """`usage [SINCE UNTIL]`; an empty one means all days before, or after."""
    if len(argv) not in (0, 2) or not all(_DAY.fullmatch(day) for day in argv if day):
        raise HostError("usage: usage [SINCE UNTIL], days as 2026-11-24")
    since, until = argv or ("", "")
    return answer(collect(Paths(), since or MIN_DAY, until or MAX_DAY))
