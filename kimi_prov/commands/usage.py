"""`kimi-prov usage`: what each key used, by key, by day or by host.

Decides: what counts as usage (how it is shown).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.commands.common import playbook_run
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.show.text import usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.show.output import Output

SCHEMA = "kimi-prov/usage/v1"
_NUMBERS = ("requests", "prompt_tokens", "completion_tokens")


@dataclass(frozen=True)
class Span:
    """Days from `since` to `until`, both included, None for all; and by what rows are put."""

    since: str | None
    until: str | None
    by: str


def run(
    path: Path, span: Span, options: PlaybookOptions, output: Output, *, csv: bool = False
) -> ExitCode:
    """Report what the keys of every host used; exit 1 where some of it was not counted."""
    output.check()
    if span.since and span.until and span.since > span.until:
        raise UserError(
            f"--since {span.since} is after --until {span.until}", fix="exchange the two"
        )
    wanted = {"kimi_usage_since": span.since or "", "kimi_usage_until": span.until or ""}
    inventory, request = playbook_run.prepare("usage", "usage", path, options, wanted)
    finished = playbook_run.run(request, inventory)
    documents = finished.outcome.documents.items()
    hosts = {host: {"rows": [], "uncounted": [], **found} for host, found in documents}
    for failure in finished.outcome.failures:
        if failure.host:
            hosts.setdefault(failure.host, {"ok": False, "detail": failure.cause})
    if hosts:
        document = {
            "schema": SCHEMA,
            "ok": all(found.get("ok") for found in hosts.values()),
            "since": span.since,
            "until": span.until,
            "by": span.by,
            "rows": grouped(hosts, span.by),
            "hosts": hosts,
        }
        output.write(document, lambda: (usage.csv if csv else usage.text)(document))
    bad = any(not found.get("ok") for found in hosts.values())
    return playbook_run.conclude(finished, *([ExitCode.FAILED] if bad else []))


def grouped(hosts: Mapping[str, Any], by: str) -> list[dict[str, Any]]:
    """Sum the hosts' rows up: one row a key, or a key and day, or a key and host."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for host, row in _rows(hosts):
        first = {"key": {}, "day": {"day": row["day"]}, "host": {"host": host}}[by]
        name = (*first.values(), row["key"])
        whole = found.setdefault(
            name, {**first, "key": row["key"], **dict.fromkeys(_NUMBERS, 0), "refused": {}}
        )
        for number in _NUMBERS:
            whole[number] += row[number]
        for reason, times in row["refused"].items():
            whole["refused"][reason] = whole["refused"].get(reason, 0) + times
    return [found[name] for name in sorted(found)]


def _rows(hosts: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return ((host, row) for host, told in hosts.items() for row in told.get("rows") or ())
