"""`kimi-prov check`: whether machines can serve the model, in one document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.option_types import FiniteRange
from kimi_prov.commands.common.options import (
    CATALOG,
    MODEL,
    PATH,
    add_connection_options,
    add_model_options,
    add_report_options,
)
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.show.output import say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kimi_prov.contract.documents.check import Check
    from kimi_prov.runner.connection import ConnectionOptions
    from kimi_prov.show.output import Output

_YEARS = FiniteRange(0.1, 20)
_SHARE = FiniteRange(0, 1, min_open=True)
_DOLLARS = FiniteRange(0, 10)
# The same ranges as in the schema of a load file.
_USERS = click.IntRange(1, 1_000_000)
_TOKENS = click.IntRange(1, 100_000_000)
_DAILY = FiniteRange(1, 1e15)
_SECONDS = FiniteRange(0.001, 86_400)
_MILLISECONDS = FiniteRange(0.001, 3_600_000)


@click.command(cls=Command)
@click.argument("targets", nargs=-1, type=PATH, metavar="[TARGET]...")
@click.option(
    "--inventory",
    "inventories",
    multiple=True,
    type=PATH,
    metavar="PATH",
    help="Probe an inventory's hosts too; Ansible runs what it says. May be repeated.",
)
@click.option(
    "--text",
    "offers",
    multiple=True,
    type=PATH,
    metavar="FILE",
    help="Print the sheet that an offer, as it was pasted, says; `-`: standard input.",
)
@CATALOG
@MODEL
@click.option("--engine", metavar="auto|vllm|ktransformers", help="The engine.")
@add_model_options
@click.option(
    "--amortise-years",
    type=_YEARS,
    metavar="YEARS",
    help="A purchase is paid off in.  [default: 4]",
)
@click.option(
    "--utilisation",
    type=_SHARE,
    metavar="SHARE",
    help="Share of all hours in use, 0 to 1.  [default: 0.3]",
)
@click.option("--power-price", type=_DOLLARS, metavar="USD", help="Dollars a kWh.  [default: 0.15]")
@click.option(
    "--people",
    type=_USERS,
    metavar="N",
    help="Who may ask; a share of them, stated in the answer, has a request in flight at peak.",
)
@click.option(
    "--users", type=_USERS, metavar="N", help="Requests in flight at peak, on all machines."
)
@click.option(
    "--tokens-per-day", type=_DAILY, metavar="N", help="Output tokens a day, of all requests."
)
@click.option(
    "--ttft-s", type=_SECONDS, metavar="S", help="The longest time to the first token, in seconds."
)
@click.option(
    "--tpot-ms",
    type=_MILLISECONDS,
    metavar="MS",
    help="The longest time between two tokens of a request, in milliseconds.",
)
@click.option(
    "--input-tokens", type=_TOKENS, metavar="N", help="Of a typical prompt.  [default: 8192]"
)
@click.option(
    "--output-tokens", type=_TOKENS, metavar="N", help="Of a typical answer.  [default: 1024]"
)
@click.option(
    "--load",
    "load_file",
    type=PATH,
    metavar="FILE",
    help="All of these from a file of the schema kimi-prov/load/v1; options win over it.",
)
@click.option(
    "--suggest", is_flag=True, help="Also name the smallest machines of the catalogue that suffice."
)
@click.option(
    "--measured",
    multiple=True,
    type=PATH,
    metavar="BENCH",
    help="Output of `bench --format json` of a target's own machine. May be repeated.",
)
@click.option(
    "--bundle",
    type=PATH,
    metavar="DIR",
    help="Also whether this offline bundle has all that each machine installs.",
)
@click.option("--details", is_flag=True, help="Every machine in full, where text compares several.")
@add_report_options("text", "json", "markdown", "html", by_suffix=True)
@add_connection_options
def check(
    targets: tuple[Path, ...],
    inventories: tuple[Path, ...],
    offers: tuple[Path, ...],
    connection: ConnectionOptions,
    output: Output,
    *,
    details: bool,
    **values: Any,  # noqa: ANN401
) -> ExitCode:
    """Show whether machines can serve the model, how fast, at what cost, and which faults block it.

    A TARGET is data: a spec sheet, a facts file that `probe` wrote, or a recorded folder. The
    hosts of `--inventory` are probed and not changed. Exits 3 where any of them is blocked.

    With `--people`, `--users` or `--tokens-per-day` it shows how many machines carry that load.
    With `--text` it prints a spec sheet for correction, and judges nothing.
    """
    # The planner is slow to import: help and completion do not import it.
    from kimi_prov.commands.check import evaluation, options  # noqa: PLC0415
    from kimi_prov.commands.check.targets import KINDS  # noqa: PLC0415
    from kimi_prov.show.report import check as reports  # noqa: PLC0415

    chosen = options.parse(**values)
    if offers:
        from kimi_prov.commands.check import offers as texts  # noqa: PLC0415

        if targets or inventories or chosen.suggest:
            raise UserError(
                "--text prints a sheet and judges nothing",
                fix="save that sheet, correct it, and name it as the target",
            )
        return texts.print_sheets(offers, output)
    if not (targets or inventories or chosen.suggest):
        raise UserError(
            "there is nothing to check",
            fix=f"{KINDS}, or --inventory PATH, or --suggest",
        )
    output.check()
    rows = evaluation.judge_files(targets, chosen)
    codes: list[ExitCode] = []
    for path in inventories:
        hosts, code = evaluation.judge_inventory(path, chosen, connection)
        codes.append(code)
        rows += hosts
    if chosen.suggest:
        try:
            rows += evaluation.judge_suggestions(chosen)
        except UserError as error:
            # The named targets are judged all the same.
            if not rows:
                raise
            say(f"--suggest: {error.message}; {error.fix}")
    if rows:
        document = reports.build_document(rows, chosen.load)
        codes.append(_write_report(document, output, details=details))
    return _choose_code(codes)


def _write_report(document: Check, output: Output, *, details: bool) -> ExitCode:
    """Write the report; one that goes to a file says its answer in a line."""
    from kimi_prov.show.report.writers import find_writer  # noqa: PLC0415

    output.write(document, lambda: find_writer(output.format, details=details)(document))
    if output.file is not None:
        say(f"{output.file}: {document['answer']['sentence']}")
    return ExitCode.OK if document["ok"] else ExitCode.BLOCKED


def _choose_code(codes: Sequence[ExitCode]) -> ExitCode:
    from kimi_prov.runner.outcome import PRECEDENCE  # noqa: PLC0415

    return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)
