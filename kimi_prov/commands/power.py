"""`kimi-prov stop`, `start` and `restart` of an inventory's hosts, or of a cluster's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common import host_reports, playbook_run, rendered
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import add_folder_options, add_inventory_options
from kimi_prov.commands.kubernetes import apply
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.operate.kubernetes.kubectl import Target
from kimi_prov.show.output import say

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.show.output import Output


DRAIN = click.option(
    "--drain",
    "drain_s",
    type=click.IntRange(0, 86_400),
    metavar="SECONDS",
    help="Seconds for answers in progress.  [default: 300]",
)


@click.command(cls=Command)
@add_folder_options(DRAIN)
def stop(
    path: Path, options: PlaybookOptions, output: Output, target: Target, drain_s: int | None
) -> ExitCode:
    """Stop the model until `start` or `apply` starts it again; a reboot does not start it.

    Answers in progress may end first. Memory and GPUs are free then; weights, keys, web UI, history
    and certificate stay, and the port answers 503 with the reason. DIR is a folder that `render
    kubernetes` made: its volume stays.
    """
    if rendered.is_kubernetes(path, "stop", target, options.list_given() | {"drain": drain_s}):
        output.check()
        return apply.stop(path, target, output)
    return _run("stop", path, options, output, _build_variables(drain_s))


@click.command(cls=Command)
@add_folder_options()
def start(path: Path, options: PlaybookOptions, output: Output, target: Target) -> ExitCode:
    """Start a stopped or sleeping model, and wait until it answers.

    It shows how long that will take, by the last starts on the machine.
    """
    if rendered.is_kubernetes(path, "start", target, options.list_given()):
        output.check()
        return apply.start(path, target, output)
    return _run("start", path, options, output, {})


@click.command(cls=Command)
@add_inventory_options(DRAIN)
def restart(path: Path, options: PlaybookOptions, output: Output, drain_s: int | None) -> ExitCode:
    """Restart one instance after another, so that the others go on serving."""
    if rendered.is_kubernetes(path, "restart", Target()):
        raise UserError(
            f"{path}: restart is for an inventory, and this was rendered for Kubernetes",
            fix=f"kimi-prov stop {clean_text.quote_word(path)}, then kimi-prov start",
        )
    return _run("restart", path, options, output, _build_variables(drain_s))


def _build_variables(seconds: int | None) -> dict[str, Any]:
    return {} if seconds is None else {"stop_drain_s": seconds}


def _run(
    command: str,
    path: Path,
    options: PlaybookOptions,
    output: Output,
    variables: Mapping[str, Any],
) -> ExitCode:
    output.check()
    inventory, request = playbook_run.prepare(command, command, path, options, variables)
    finished = playbook_run.run_locked(path, request, inventory)
    code = host_reports.publish(command, finished, output, _format_text)
    if command == "stop" and code is ExitCode.OK:
        say(f"next:  kimi-prov start {clean_text.quote_word(path)}")
    return code


def _format_text(document: Mapping[str, Any]) -> str:
    rows = document["hosts"].items()
    return "\n".join(f"{clean_text.clean_line(name)}: {found['detail']}" for name, found in rows)
