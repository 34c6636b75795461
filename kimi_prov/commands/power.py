"""`kimi-prov stop`, `start` and `restart`: of an inventory's hosts, or of a cluster's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.commands.common import file_transfer, host_reports, playbook_run, rendered
from kimi_prov.commands.kubernetes import apply
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.operate.kubernetes.kubectl import Target
from kimi_prov.runner import locks
from kimi_prov.show.output import say
from kimi_prov.user_dirs import state_home

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.show.output import Output


def stop(
    path: Path, options: PlaybookOptions, output: Output, target: Target, drain_s: int | None
) -> ExitCode:
    """Stop what serves; `drain_s`: seconds that answers under way have."""
    if rendered.is_kubernetes(path, "stop", target, options.given() | {"drain": drain_s}):
        output.check()
        return apply.stop(path, target, output)
    return _play("stop", path, options, output, _drain(drain_s))


def start(path: Path, options: PlaybookOptions, output: Output, target: Target) -> ExitCode:
    """Start what was stopped or sleeps, and wait until it answers."""
    if rendered.is_kubernetes(path, "start", target, options.given()):
        output.check()
        return apply.start(path, target, output)
    return _play("start", path, options, output, {})


def restart(path: Path, options: PlaybookOptions, output: Output, drain_s: int | None) -> ExitCode:
    """Restart what serves, one instance after the other. Raises UserError for a folder."""
    if rendered.is_kubernetes(path, "restart", Target()):
        raise UserError(
            f"{path}: restart is for an inventory, and this was rendered for Kubernetes",
            fix=f"kimi-prov stop {clean_text.quote_word(path)}, then kimi-prov start",
        )
    return _play("restart", path, options, output, _drain(drain_s))


def _drain(seconds: int | None) -> dict[str, Any]:
    return {} if seconds is None else {"stop_drain_s": seconds}


def _play(
    command: str,
    path: Path,
    options: PlaybookOptions,
    output: Output,
    variables: Mapping[str, Any],
) -> ExitCode:
    output.check()
    inventory, request = playbook_run.prepare(command, command, path, options, variables)
    with locks.held(path, command, state_home()) as descriptor:
        finished = playbook_run.run(request, inventory, (descriptor,))
    code = host_reports.publish(command, finished, output, _text, file_transfer.unreached)
    if command == "stop" and code is ExitCode.OK:
        say(f"next:  kimi-prov start {clean_text.quote_word(path)}")
    return code


def _text(document: Mapping[str, Any]) -> str:
    rows = document["hosts"].items()
    return "\n".join(f"{clean_text.clean_line(name)}: {found['detail']}" for name, found in rows)
