"""`kimi-prov contribute`: rows of the catalogue's speeds from a bench, without a word of whose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.acceptance import bench_results
from kimi_prov.catalog.loader import load
from kimi_prov.errors import UserError
from kimi_prov.planner.throughput import contribution, rows
from kimi_prov.show.output import say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kimi_prov.show.output import Output

_HEAD = """\
# Speeds that `kimi-prov bench` measured, in the form of the catalogue's speeds.yaml. Keep the rows
# in the speeds.yaml of your own catalogue (--catalog DIR), or send them in as a pull request.
"""


def run(path: Path, output: Output) -> None:
    """Write the rows of every host that was measured; refuse a document that has none."""
    output.check()
    found, refused = _rows(path)
    for line in refused:
        say(f"left out: {line}")
    if not found:
        raise UserError(
            f"{path}: no host of it was measured",
            fix="measure one that serves a real model:  kimi-prov bench INVENTORY --format json "
            "--output bench.json",
        )
    output.write({"schema": contribution.SCHEMA, "rows": found}, lambda: text(found))


def _rows(path: Path) -> tuple[list[contribution.Row], list[str]]:
    found: dict[str, contribution.Row] = {}
    refused = []
    for host, result in bench_results.read(path).items():
        why = bench_results.refusal(result)
        try:
            made = [] if why else contribution.make_rows(result, load())
        except UserError as error:
            made, why = [], str(error)
        found.update((row["id"], row) for row in made)
        refused += [f"{host}: {why}"] if why else []
    return list(found.values()), refused


def text(found: Sequence[contribution.Row]) -> str:
    """Write rows as YAML; which of them the estimator sets aside, and why, stands at the top."""
    import yaml  # noqa: PLC0415  (only who writes it pays for it)

    _, aside = rows.read_rows(found, "these rows")
    notes = [f"# {row.id} is not scored: {row.reason}\n" for row in aside]
    document: dict[str, Any] = {"schema": contribution.SCHEMA, "rows": list(found)}
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=1000)
    return "".join([_HEAD, *notes, body])
