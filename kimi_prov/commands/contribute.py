"""`kimi-prov contribute`: rows of the catalogue's speeds from a bench, without its owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kimi_prov.acceptance import bench_results
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import CATALOG, OUTPUT, PATH
from kimi_prov.errors import UserError
from kimi_prov.planner.throughput import contribution, rows
from kimi_prov.show.output import Output, say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_HEAD = """\
# Speeds that `kimi-prov bench` measured, in the form of the catalogue's speeds.yaml. Keep the rows
# in the speeds.yaml of your own catalogue (--catalog DIR), or send them in as a pull request.
"""


@click.command(cls=Command)
@click.argument("results", type=PATH, metavar="BENCH")
@CATALOG
@OUTPUT
def contribute(results: Path, output: Path | None) -> None:
    """Write rows of the catalogue's speeds from results of `bench`, without names or addresses.

    BENCH is a file of `bench --format json`. Keep the rows as speeds.yaml in a catalogue of your
    own (`--catalog`), or send them in as a pull request. Results of stand-ins are refused.
    """
    report = Output(file=output)
    report.check()
    speeds, refused = _read_rows(results)
    for line in refused:
        say(f"left out: {line}")
    if not speeds:
        raise UserError(
            f"{results}: no host of it was measured",
            fix="measure one that serves a real model:  kimi-prov bench INVENTORY --format json "
            "--output bench.json",
        )
    report.write({"schema": contribution.SCHEMA, "rows": speeds}, lambda: _format_yaml(speeds))


def _read_rows(path: Path) -> tuple[list[contribution.Row], list[str]]:
    """Return the rows of every measured host, and why the others have none."""
    speeds: dict[str, contribution.Row] = {}
    refused = []
    for host, result in bench_results.read_results(path).items():
        reason = bench_results.find_refusal(result)
        try:
            made = [] if reason else contribution.make_rows(result, load_catalogue())
        except UserError as error:
            made, reason = [], str(error)
        speeds.update((row["id"], row) for row in made)
        refused += [f"{host}: {reason}"] if reason else []
    return list(speeds.values()), refused


def _format_yaml(speeds: Sequence[contribution.Row]) -> str:
    """Write rows as YAML; comments at the top name rows that the estimator ignores, and why."""
    import yaml  # noqa: PLC0415  (only who writes it pays for it)

    _, aside = rows.read_rows(speeds, "these rows")
    notes = [f"# {row.id} is not scored: {row.reason}\n" for row in aside]
    document: dict[str, Any] = {"schema": contribution.SCHEMA, "rows": list(speeds)}
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=1000)
    return "".join([_HEAD, *notes, body])
