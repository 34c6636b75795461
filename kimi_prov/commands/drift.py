"""`kimi-prov drift`: differences from what was applied, their time and cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kimi_prov.acceptance.drift import make_unreached_entry
from kimi_prov.commands.common import host_reports
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import CATALOG, EXTRA, add_inventory_options
from kimi_prov.show.text import drift as drift_text

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output


@click.command(cls=Command)
@add_inventory_options(
    click.option("--weights", is_flag=True, help="Read every byte of the weights again: minutes."),
    EXTRA,
    CATALOG,
)
def drift(path: Path, options: PlaybookOptions, output: Output, *, weights: bool) -> ExitCode:
    """Show what on the machines differs from what was applied, since when and by what cause.

    Changes nothing. Exits 1 where something differs, and where not everything could be checked
    (`complete: false`). Changes that `apply` would make today are shown apart and are no drift.
    """
    output.check()
    variables = {"drift_weights": weights, "drift_inventory": str(path)}
    finished = host_reports.collect("drift", path, options, variables)
    return host_reports.publish(
        "drift", finished, output, drift_text.format_text, make_unreached_entry
    )
