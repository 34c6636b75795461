"""Runs code of an engine like the server: as its user, in a unit with its protection.

systemd-run passes on input, output and exit status. The unit has a name, so that it is ended when
the waiting process is ended or loses its reader, and the next run finds what is left.

Decides: what systemd keeps from the processes of a unit (for code of an engine that is no
  server).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths, processes, protection, unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import process
from kimi_prov.on_host.system.files import make_directory, remove, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Seconds after its limit in which systemd ends the unit, if no process is left to end it.
_GRACE_S = 30.0
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_HOME = "/tmp"  # noqa: S108 - one of its own, which goes with the unit


@contextlib.contextmanager
def open_process(
    argv: list[str],
    *,
    env: Mapping[str, str],
    limit_s: float,
    gpus: bool,
    peers: Sequence[str] = (),
    rdma: bool = False,
    binds: bool = True,
    **streams: Any,  # noqa: ANN401
) -> Iterator[subprocess.Popen[str]]:
    """Start `argv` in the sandbox and yield its process; at the end it has ended.

    `env` is its environment, beside what systemd gives to every unit. `peers`: addresses that it
    reaches beside the loopback. `binds`: whether it may choose the CPUs that it runs on. `streams`:
    as of Popen.
    """
    end()
    file = _make_own_file()
    options = [
        "--description=Kimi: code of the engine",
        f"--property=RuntimeMaxSec={limit_s + _GRACE_S:.0f}",
        f"--property=EnvironmentFile={file}",
        *protection.build_sandbox_options(gpus=gpus, peers=peers, rdma=rdma, binds=binds),
    ]
    with contextlib.ExitStack() as done:
        done.callback(remove, str(file))
        write_atomic(file, _format_environment({"HOME": _HOME, **env}), 0o600)
        yield done.enter_context(run_transient(unit_names.SANDBOX, options, argv, **streams))


@contextlib.contextmanager
def run_transient(
    unit: str,
    options: Sequence[str],
    argv: Sequence[str],
    **streams: Any,  # noqa: ANN401
) -> Iterator[subprocess.Popen[str]]:
    """Start `argv` as a transient unit of that name; at the end it has ended in any case.

    `options`: of systemd-run, beside those that pass on input and output.
    """
    command = [
        *("systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--service-type=exec"),
        f"--unit={unit}",
        *options,
        "--",
        *argv,
    ]
    with _raise_on_signals(), _start(unit, command, streams) as running, _end_when_unread(unit):
        yield running


def run(
    *argv: str,
    env: Mapping[str, str],
    stdin: str = "",
    timeout: float,
    gpus: bool = False,
    peers: Sequence[str] = (),
    rdma: bool = False,
    binds: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command in the sandbox; the caller checks the exit status, as for process.run."""
    streams: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    streams |= {"encoding": "utf-8", "errors": "replace"}
    with open_process(
        list(argv),
        env=env,
        limit_s=timeout,
        gpus=gpus,
        peers=peers,
        rdma=rdma,
        binds=binds,
        **streams,
    ) as running:
        try:
            out, said = running.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            return process.Unfinished(argv, process.TIMED_OUT, "timed out")
    return subprocess.CompletedProcess(list(argv), running.returncode, out, said)


def end(unit: str = unit_names.SANDBOX) -> None:
    """End the unit, and whatever an earlier one left."""
    process.run("systemctl", "stop", unit)
    process.run("systemctl", "reset-failed", unit)


@contextlib.contextmanager
def _start(
    unit: str, command: list[str], streams: dict[str, Any]
) -> Iterator[subprocess.Popen[str]]:
    try:
        running = subprocess.Popen(command, **streams)
    except OSError as error:
        raise HostError(f"systemd-run: {error.strerror}", "see that systemd is installed") from None
    with running:
        try:
            yield running
        finally:
            # Killing systemd-run alone would leave the unit.
            if running.poll() is None:
                end(unit)
                running.kill()


@contextlib.contextmanager
def _raise_on_signals() -> Iterator[None]:
    """Turn signals that would end this process into exceptions: the unit is not its child."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _end_when_unread(unit: str) -> Iterator[None]:
    """End the unit when our standard output has no reader any more: the connection was cut."""
    woken, wake = os.pipe()
    watched = select.poll()
    watched.register(1, 0)
    watched.register(woken, 0)

    def watch() -> None:
        seen = dict(watched.poll())
        if woken not in seen and seen.get(1, 0) & (select.POLLERR | select.POLLHUP):
            end(unit)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(wake)
        thread.join()
        os.close(woken)


def _make_own_file() -> Path:
    """Return a file of this run alone: a run that it ended removes its own a little later.

    Files of processes that were killed are removed.
    """
    folder = Path(paths.SANDBOX_ENVS)
    make_directory(folder.parent, 0o755)
    make_directory(folder, 0o700)
    for name in os.listdir(folder):
        # A file that is being written has a name that begins with a dot.
        owner = name.lstrip(".").partition("-")[0]
        if not (owner.isdigit() and processes.is_alive(int(owner))):
            remove(str(folder / name))
    return folder / f"{os.getpid()}-{secrets.token_hex(4)}.env"


def _format_environment(env: Mapping[str, str]) -> str:
    """Return the text of an environment file: values may be secret and must not be arguments."""
    return "".join(f'{name}="{_escape(str(value))}"\n' for name, value in env.items())


def _escape(value: str) -> str:
    return "".join(f"\\{character}" if character in '\\"$`' else character for character in value)
