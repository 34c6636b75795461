"""`kimi-prov plan`: print what `apply` would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kimi_prov.commands.common import playbook_run
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import BUNDLE, CATALOG, EXTRA, add_inventory_options
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode
from kimi_prov.show.text import plan as plan_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.show.output import Output

_BLOCKER = "blocker"


@click.command(cls=Command)
@add_inventory_options(BUNDLE, EXTRA, CATALOG)
def plan(path: Path, options: PlaybookOptions, output: Output, *, bundle: Path | None) -> ExitCode:
    """Print what would be done and why; changes nothing. Exits 3 where that is blocked."""
    output.check()
    inventory, request = playbook_run.prepare(
        "plan", "plan", path, options, playbook_run.name_bundle(bundle)
    )
    finished = playbook_run.run(request, inventory)
    plans = finished.outcome.plans
    blocked = any(
        row["severity"] == _BLOCKER for found in plans.values() for row in found["findings"]
    )
    if plans:
        document = {"schema": "kimi-prov/plan/v1", "hosts": plans}
        output.write(document, lambda: _format_text(plans))
    return playbook_run.conclude(finished, *([ExitCode.BLOCKED] if blocked else []))


def _format_text(plans: Mapping[str, MachinePlan]) -> str:
    named = [(clean_text.clean_row(host), found) for host, found in plans.items()]
    return "\n".join(
        f"{host}\n{'=' * len(host)}\n{plan_text.format_plan(found)}" for host, found in named
    )
