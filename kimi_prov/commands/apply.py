"""`kimi-prov apply`: bring the machines to what their plan says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.acceptance import suite
from kimi_prov.commands.common import playbook_run, rendered
from kimi_prov.commands.kubernetes import apply
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode
from kimi_prov.runner import locks
from kimi_prov.show.output import say, show
from kimi_prov.show.text import run_summary
from kimi_prov.user_dirs import state_home

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.operate.kubernetes.kubectl import Target
    from kimi_prov.runner.inventory import Inventory
    from kimi_prov.runner.run import FinishedRun


def run(path: Path, options: PlaybookOptions, target: Target) -> ExitCode:
    """Apply the plan; end with the endpoint and the time of each phase, on standard output."""
    if rendered.is_kubernetes(path, "apply", target, options.given("check", "diff")):
        return apply.run(path, target, check=options.check, diff=options.diff)
    inventory, request = playbook_run.prepare("apply", "site", path, options)
    if options.check:
        finished = playbook_run.run(request, inventory)
    else:
        with locks.held(path, "apply", state_home()) as descriptor:
            finished = playbook_run.run(request, inventory, (descriptor,))
    code = playbook_run.conclude(finished)
    if code is ExitCode.OK:
        show(_summary(finished, inventory, options))
    elif code is ExitCode.INTERRUPTED:
        say("what is done is kept; the same command goes on from there")
    return code


def _summary(finished: FinishedRun, inventory: Inventory, options: PlaybookOptions) -> str:
    outcome = finished.outcome
    blocks = [run_summary.counts(outcome) + (" (check mode)" if options.check else "")]
    if options.check:
        changes = (f"  {host}: {phase}: {task}" for host, phase, task in outcome.changes)
        blocks += map(clean_text.clean_row, changes)
    else:
        blocks.append("served:")
        for host, plan in sorted(outcome.plans.items()):
            notes = suite.stand_ins(plan, inventory.hosts.get(host, {}))
            blocks.append(run_summary.served(plan, host, inventory.address(host), notes))
    blocks += ["where the time went:", run_summary.times(outcome)]
    if not options.check:
        blocks.append(f"the API key, once:  kimi-prov key {clean_text.quote_word(inventory.path)}")
    return "\n".join([*blocks, f"log: {finished.log}"]) + "\n"
