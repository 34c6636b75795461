"""Run one playbook through ansible-runner, show its progress, and end it when interrupted."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.packaging import resources
from kimi_prov.runner import (
    arguments,
    cancel,
    connection,
    events,
    jump_hosts,
    redaction,
    signals,
)
from kimi_prov.runner.outcome import Outcome
from kimi_prov.runner.pasteable import fill_inventory
from kimi_prov.runner.private_folder import make_private_folder
from kimi_prov.runner.progress import ProgressReader
from kimi_prov.runner.run_folder import RunFolder
from kimi_prov.runner.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kimi_prov.runner.arguments import PrivateFolder, Request
    from kimi_prov.runner.events import Event
    from kimi_prov.runner.inventory import Inventory
    from kimi_prov.runner.progress import ProgressUpdate

# Ways through other hosts that ssh is asked about.
_MAX_WAYS = 4
_POLL_INTERVAL_S = 0.1
# Only this module writes Ansible's output, masked.
_SETTINGS = {"suppress_output_file": True, "pexpect_timeout": 1}


class Screen(Protocol):
    """What shows the progress of a run."""

    def start(self, title: str) -> None:
        """Begin."""

    def event(self, event: Event) -> None:
        """Show an event of a host."""

    def progress(self, update: ProgressUpdate) -> None:
        """Show the progress of long work."""

    def tick(self) -> None:
        """Refresh; called several times a second."""

    def say(self, line: str) -> None:
        """Show one line."""

    def stop(self) -> None:
        """End; the screen does not change any more."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended: its outcome, its folder, and the operator's key if there is one."""

    outcome: Outcome
    folder: Path
    log: Path
    key_lines: tuple[str, ...] = ()
    inventory: Path | None = None


class _Interrupt:
    """Stores the signal that came; the run looks for it between events."""

    def __init__(self) -> None:
        self.name: str | None = None

    def __call__(self, signal_number: int, _frame: object) -> None:
        self.name = signal.Signals(signal_number).name


def import_ansible_runner() -> Callable[..., Any]:
    """Import ansible-runner, which takes a quarter of a second; return its factory of runners."""
    from ansible_runner.interface import init_command_config  # noqa: PLC0415

    return cast("Callable[..., Any]", init_command_config)


def run_playbook(
    request: Request, inventory: Inventory, screen: Screen, *, inherit: Sequence[int] = ()
) -> FinishedRun:
    """Run the playbook to its end or to an interruption.

    `inherit`: file descriptors of locks, which stay held after the command line was killed until
    the last process of its run has ended. Raises UserError where the run could not begin.
    """
    masker = redaction.make_masker(inventory.machines, inventory.base, request.connection.secrets())
    folder = RunFolder.create(request.command, inventory.path, masker)
    addresses = {host: inventory.address(host) for host in inventory.machines}
    own = request.connection.options.ssh_common_args or ""
    through = {host: f"{inventory.ssh_arguments(host)} {own}" for host in inventory.machines}
    outcome = Outcome(addresses, through)
    started = time.monotonic()
    run_id = uuid.uuid4().hex
    with make_private_folder(run_id) as private, _catch_signals() as interrupt:
        _prepare_folder(request, private)
        watchdog = Watchdog(run_id, private.folder, inherit)
        work = _Work(request, private, run_id, folder, masker)
        screen.start(f"{request.command} {inventory.path}")
        try:
            work.start()
            _follow_run(work, outcome, screen, masker, interrupt)
            if interrupt.name:
                screen.say(f"interrupted ({interrupt.name}): ending what runs on this machine")
        finally:
            left = _end_run(work, private, run_id, everything=interrupt.name is not None)
            screen.stop()
            watchdog.dismiss()
        if left:
            screen.say(f"could not be ended (another user's): process {', '.join(map(str, left))}")
        keys = _read_key_lines(private)
    outcome.close(
        work.return_code, time.monotonic() - started, interrupted=interrupt.name is not None
    )
    _ask_hops(outcome, inventory)
    outcome.mask(lambda text: fill_inventory(masker.mask(text), inventory.path))
    folder.save_results(request, outcome)
    return FinishedRun(outcome, folder.path, folder.log, keys, inventory.path)


def _ask_hops(outcome: Outcome, inventory: Inventory) -> None:
    """Ask ssh which hop failed, once for hosts that are reached through the same ones."""
    said: dict[str, str] = {}
    for at, failure in enumerate(outcome.failures):
        if failure.hop_unknown and len(said) <= _MAX_WAYS:
            address, way = outcome.find_way(failure.host)
            login = {**inventory.machines.get(failure.host, {}), "address": address}
            text = said.get(way) or said.setdefault(way, jump_hosts.ask_ssh(login, way))
            hops = jump_hosts.read_hops(way)
            if known := jump_hosts.explain_hop(text, failure.host, address, hops):
                cause, fix = known
                outcome.failures[at] = replace(failure, cause=cause, fix=fix, hop_unknown=False)


class _Work:
    """ansible-runner in a thread of its own, which puts its events into a queue."""

    def __init__(
        self,
        request: Request,
        private: PrivateFolder,
        run_id: str,
        folder: RunFolder,
        masker: redaction.Masker,
    ) -> None:
        self._masker = masker
        self._phase_names = request.phase_names
        self.queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.return_code: int | None = None
        self.error: BaseException | None = None
        self.progress = ProgressReader(private.progress)
        self._folder = folder
        self._cancelled = threading.Event()
        access = connection.write_access(request.connection, private.folder)
        self._argv = arguments.make_playbook_arguments(request, private, access)
        self._private = private
        self._environment = arguments.make_environment(
            os.environ,
            config=access.config,
            plugins=resources.find_plugins(),
            private=private,
            run_id=run_id,
            inventory=request.inventory,
        )
        self._thread = threading.Thread(target=self._run, name="ansible-runner", daemon=True)

    def start(self) -> None:
        """Start the playbook."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the playbook still runs."""
        return self._thread.is_alive()

    def cancel(self) -> None:
        """Make ansible-runner stop; its processes are ended elsewhere."""
        self._cancelled.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread for at most `timeout_s` seconds."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            runner = import_ansible_runner()(
                arguments.find_executable(),
                self._argv,
                private_data_dir=str(self._private.folder / "runner"),
                quiet=True,
                envvars=self._environment,
                event_handler=self._handle_event,
                cancel_callback=self._cancelled.is_set,
            )
            runner.run()
            self.return_code = runner.rc
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.error = error

    def _handle_event(self, raw: dict[str, Any]) -> bool:
        """Log and pass one event on; False keeps ansible-runner from writing it to a file."""
        text = raw.get("stdout")
        if text:
            self._folder.write(str(text))
        event = events.parse_event({**raw, "stdout": self._masker.mask(str(text))} if text else raw)
        if isinstance(event, events.TaskStarted | events.TaskFinished):
            event = replace(event, phase=self._phase_names.get(event.phase, event.phase))
        if event is not None:
            self.queue.put(event)
        return False


def _follow_run(
    work: _Work, outcome: Outcome, screen: Screen, masker: redaction.Masker, interrupt: _Interrupt
) -> None:
    """Show events until the playbook ends or a signal interrupts it."""
    while not interrupt.name:
        running = work.running
        while not work.queue.empty() or (running and _wait_moment(work)):
            event = work.queue.get()
            outcome.add(event)
            if isinstance(event, events.TaskFinished) and event.host in outcome.plans:
                masker.add(redaction.find_plan_secrets(outcome.plans[event.host]))
            screen.event(event)
            if interrupt.name:
                return
        for update in work.progress.read():
            screen.progress(update.masked(masker.mask))
        screen.tick()
        if not running:
            break
    if work.error is not None:
        raise UserError(
            f"ansible-runner could not run the playbook: {work.error}",
            fix="pip install --force-reinstall kimi-prov",
            exit_code=ExitCode.FAILED,
        ) from work.error


def _wait_moment(work: _Work) -> bool:
    """Sleep a moment, unless an event is waiting."""
    if work.queue.empty():
        time.sleep(_POLL_INTERVAL_S)
    return not work.queue.empty()


def _end_run(work: _Work, private: PrivateFolder, run_id: str, *, everything: bool) -> list[int]:
    """End the run's processes: all, or after a normal end only the shared connections."""
    if everything or work.running:
        work.cancel()
        left = cancel.end_run(run_id, private.folder)
        work.join(10)
        return left
    cancel.end_processes(cancel.find_ssh_masters(private.folder))
    return []


def _prepare_folder(request: Request, private: PrivateFolder) -> None:
    settings = private.folder / "runner" / "env"
    for folder in (settings.parent, settings, private.sockets, private.temporary):
        folder.mkdir(mode=0o700)
    # ansible-runner ignores settings that are passed as an argument if this file is missing.
    (settings / "settings").write_text(json.dumps(_SETTINGS))
    if request.variables:
        private.variables.touch(mode=0o600)
        private.variables.write_text(json.dumps(dict(request.variables)))


def _read_key_lines(private: PrivateFolder) -> tuple[str, ...]:
    try:
        return tuple(private.key.read_text().splitlines())
    except OSError:
        return ()


@contextmanager
def _catch_signals() -> Iterator[_Interrupt]:
    """Record the signals that end a program for the main loop."""
    interrupt = _Interrupt()
    numbers = (signal.SIGINT, *signals.list_ending_signals())
    before = {signal_number: signal.signal(signal_number, interrupt) for signal_number in numbers}
    try:
        yield interrupt
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
