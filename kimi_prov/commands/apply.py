"""`kimi-prov apply`: bring the machines to their plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kimi_prov.acceptance import suite
from kimi_prov.commands.common import playbook_run, rendered
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import BUNDLE, CATALOG, EXTRA, add_folder_options
from kimi_prov.commands.kubernetes import apply as kubernetes
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode
from kimi_prov.show.output import say, show
from kimi_prov.show.text import run_summary

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.operate.kubernetes.kubectl import Target
    from kimi_prov.runner.inventory import Inventory
    from kimi_prov.runner.run import FinishedRun


@click.command(cls=Command)
@add_folder_options(
    click.option("--tags", metavar="TAGS", help="Only these parts, by role name."),
    click.option("--skip-tags", metavar="TAGS", help="All but these parts."),
    click.option("--check", is_flag=True, help="Change nothing, show what would change."),
    click.option("--diff", is_flag=True, help="Show what changes in files."),
    BUNDLE,
    EXTRA,
    CATALOG,
    report=None,
)
def apply(path: Path, options: PlaybookOptions, target: Target, *, bundle: Path | None) -> ExitCode:
    """Bring machines, or a cluster, to a served model; the same command again changes nothing.

    DIR is a folder that `render kubernetes` made: kubectl applies it to a cluster, and the weights
    are fetched before the engine starts.
    """
    own = {**options.list_given("check", "diff"), **({"bundle": bundle} if bundle else {})}
    if rendered.is_kubernetes(path, "apply", target, own):
        return kubernetes.run(path, target, check=options.check, diff=options.diff)
    inventory, request = playbook_run.prepare(
        "apply", "site", path, options, playbook_run.name_bundle(bundle)
    )
    if options.check:
        finished = playbook_run.run(request, inventory)
    else:
        finished = playbook_run.run_locked(path, request, inventory)
    code = playbook_run.conclude(finished)
    if code is ExitCode.OK:
        show(_format_summary(finished, inventory, options))
    elif code is ExitCode.INTERRUPTED:
        say("finished work is kept; the same command goes on from there")
    return code


def _format_summary(finished: FinishedRun, inventory: Inventory, options: PlaybookOptions) -> str:
    outcome = finished.outcome
    blocks = [run_summary.format_counts(outcome) + (" (check mode)" if options.check else "")]
    if options.check:
        changes = (f"  {host}: {phase}: {task}" for host, phase, task in outcome.changes)
        blocks += map(clean_text.clean_row, changes)
    else:
        blocks.append("served:")
        for host, plan in sorted(outcome.plans.items()):
            notes = suite.list_stand_ins(plan, inventory.hosts.get(host, {}))
            blocks.append(run_summary.format_served(plan, host, inventory.address(host), notes))
    blocks += ["where the time went:", run_summary.format_times(outcome)]
    if outcome.unseen_keys:
        blocks.append(f"the API key, once:  kimi-prov key {clean_text.quote_word(inventory.path)}")
    return "\n".join([*blocks, f"log: {finished.log}"]) + "\n"
