"""`kimi-prov usage`: the usage of each key, by key, day or host.

Decides: what counts as usage (how it is shown).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import click

from kimi_prov.commands.common import host_reports, playbook_run
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.option_types import Day
from kimi_prov.commands.common.options import add_inventory_options, add_report_options
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.show.text import usage as usage_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.contract.documents.usage import Usage, UsageBy, UsageRow
    from kimi_prov.show.output import Output

SCHEMA: Final = "kimi-prov/usage/v1"
_NUMBERS = ("requests", "prompt_tokens", "completion_tokens")


@click.command(cls=Command)
@add_inventory_options(
    click.option(
        "--since", type=Day(), metavar="DAY", help="First day, as 2026-11-24 or 30d (UTC)."
    ),
    click.option("--until", type=Day(), metavar="DAY", help="Last day.  [default: today]"),
    click.option(
        "--by", type=click.Choice(["key", "day", "host"]), default="key", show_default=True
    ),
    report=add_report_options("text", "json", "csv"),
)
def usage(
    path: Path,
    *,
    since: str | None,
    until: str | None,
    by: str,
    options: PlaybookOptions,
    output: Output,
) -> ExitCode:
    """Show each key's usage: requests, tokens in and out, and requests refused by a limit."""
    output.check()
    if since and until and since > until:
        raise UserError(f"--since {since} is after --until {until}", fix="exchange the two")
    variables = {"kimi_usage_since": since or "", "kimi_usage_until": until or ""}
    finished = host_reports.collect("usage", path, options, variables)
    documents = finished.outcome.documents.items()
    hosts: dict[str, Any] = {
        host: {"rows": [], "uncounted": [], **found} for host, found in documents
    }
    host_reports.add_failed(hosts, finished.outcome.failures)
    if hosts:
        write = usage_text.format_csv if output.format == "csv" else usage_text.format_text
        document: Usage = {
            "schema": SCHEMA,
            "ok": all(found.get("ok") for found in hosts.values()),
            "since": since,
            "until": until,
            "by": cast("UsageBy", by),
            "rows": sum_rows(hosts, by),
            "hosts": hosts,
        }
        output.write(document, lambda: write(document))
    bad = any(not found.get("ok") for found in hosts.values())
    return playbook_run.conclude(finished, *([ExitCode.FAILED] if bad else []))


def sum_rows(hosts: Mapping[str, Any], by: str) -> list[UsageRow]:
    """Sum up the hosts' rows: one row a key, or a key and day, or a key and host."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for host, row in _list_rows(hosts):
        first = {"key": {}, "day": {"day": row["day"]}, "host": {"host": host}}[by]
        name = (*first.values(), row["key"])
        total = sums.setdefault(
            name, {**first, "key": row["key"], **dict.fromkeys(_NUMBERS, 0), "refused": {}}
        )
        for column in _NUMBERS:
            total[column] += row[column]
        for reason, times in row["refused"].items():
            total["refused"][reason] = total["refused"].get(reason, 0) + times
    return [cast("UsageRow", sums[name]) for name in sorted(sums)]


def _list_rows(hosts: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return ((host, row) for host, answer in hosts.items() for row in answer.get("rows") or ())
