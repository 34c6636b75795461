"""Run a playbook for a command: check the options, run it, report how it ended."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.packaging import resources
from kimi_prov.runner import connection, locks
from kimi_prov.runner import inventory as inventories
from kimi_prov.runner import run as runner
from kimi_prov.runner.arguments import Request
from kimi_prov.runner.connection import ConnectionOptions
from kimi_prov.show.live import screens
from kimi_prov.show.output import say
from kimi_prov.show.text import run_summary
from kimi_prov.user_dirs import find_state_home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.runner.inventory import Inventory
    from kimi_prov.runner.run import FinishedRun, Screen


@dataclass(frozen=True)
class PlaybookOptions:
    """Options that are passed to ansible-playbook as they are."""

    limit: str | None = None
    tags: str | None = None
    skip_tags: str | None = None
    check: bool = False
    diff: bool = False
    extra: Sequence[str] = ()
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)

    def list_given(self, *without: str) -> dict[str, Any]:
        """Return the given options by name, without those that other commands have too."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "connection"}
        login = {f.name: getattr(self.connection, f.name) for f in fields(self.connection)}
        return {n: v for n, v in {**own, **login}.items() if v and n not in without}


def prepare(
    command: str,
    playbook: str,
    path: Path,
    options: PlaybookOptions,
    variables: Mapping[str, Any] | None = None,
) -> tuple[Inventory, Request]:
    """Check the inventory and the options before anything starts; return the run.

    `variables` override the inventory. Raises UserError for unreadable files and bad options.
    """
    files = tuple(inventories.find_vars_file(text) for text in options.extra)
    login = connection.prepare_connection(options.connection)
    # While Ansible reads the inventory, another core imports the modules that run the playbook.
    threading.Thread(target=runner.import_ansible_runner, daemon=True).start()
    inventory = inventories.load_inventory(path, login)
    inventories.check_limit(inventory, options.limit)
    request = Request(
        command=command,
        playbook=resources.find_playbook(playbook),
        inventory=inventory.path,
        sources=inventory.sources,
        limit=options.limit,
        tags=options.tags,
        skip_tags=options.skip_tags,
        check=options.check,
        diff=options.diff,
        vars_files=files,
        variables=variables or {},
        connection=login,
    )
    return inventory, request


def name_bundle(folder: Path | None) -> dict[str, Any]:
    """Return the variable that names an offline bundle, none where the option is not given."""
    return {"kimi_bundle": str(folder.absolute())} if folder else {}


def keep_workers(request: Request, inventory: Inventory) -> Request:
    """Return a run with one Ansible worker for each host, unless --forks is given.

    A host that is followed keeps its worker.
    """
    login = request.connection
    if login.options.forks is not None:
        return request
    options = replace(login.options, forks=max(5, len(inventory.hosts)))
    return replace(request, connection=replace(login, options=options))


def run(
    request: Request,
    inventory: Inventory,
    inherit: Sequence[int] = (),
    *,
    screen: Screen | None = None,
) -> FinishedRun:
    """Run the playbook on this terminal's screen or another; `inherit`: descriptors of locks.

    Raises UserError where the playbook is missing or could not be started.
    """
    if not request.playbook.is_file():
        raise UserError(
            f"{request.playbook} is missing: this installation is not complete",
            fix="pip install --force-reinstall kimi-prov",
            exit_code=ExitCode.FAILED,
        )
    return runner.run_playbook(request, inventory, screen or screens.choose(), inherit=inherit)


def run_locked(path: Path, request: Request, inventory: Inventory) -> FinishedRun:
    """Run the playbook while no other command changes the machines of this inventory.

    `path`: the inventory's. Raises UserError, exit 3, where another command does.
    """
    with locks.hold_lock(path, request.command, find_state_home()) as descriptor:
        return run(request, inventory, (descriptor,))


def conclude(finished: FinishedRun, *also: ExitCode) -> ExitCode:
    """Report findings, failures and the path of the log; return the exit code.

    `also`: exit codes that the command adds to those of the run.
    """
    code = finished.outcome.exit_code(*also)
    failures = finished.outcome.failures
    for warning in dict.fromkeys(finished.outcome.warnings):
        say(clean_text.clean_row(f"warning: {warning}"))
    if found := run_summary.format_findings(finished.outcome.findings):
        say(found)
    if failures:
        say("\n" + run_summary.format_failures(failures, finished.log))
    elif code is ExitCode.INTERRUPTED:
        say(f"interrupted; log: {finished.log}")
    return code
