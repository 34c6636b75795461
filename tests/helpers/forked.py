"""The command line as a process of its own, without a start of Python.

One process reads the code once and forks for each command: what a command gets, a process of its
own with signals, streams and a terminal, is what it has from a shell. That the program starts at
all, out of its wheel or by its own script, is held by the tests that start it so.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
from functools import cache
from typing import IO, TYPE_CHECKING, Any

from kimi_prov import cli
from kimi_prov.commands.common.lazy_group import LazyGroup
from kimi_prov.show import exit_handling  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
_MAX_REQUEST = 1 << 20


class Process:
    """A command that runs; it has what the tests use of subprocess.Popen."""

    def __init__(
        self,
        *words: object,
        env: Mapping[str, str],
        cwd: Path | str = "/",
        stdin: int = DEVNULL,
        stdout: int = PIPE,
        stderr: int = PIPE,
        terminal: bool = False,
        prepare: Callable[..., None] | None = None,
        prepared: Mapping[str, Any] | None = None,
    ) -> None:
        """Start it.

        `terminal`: standard input is a terminal, and is to be the process's own. `prepare`: a
        function of a helper that the process runs first, with these arguments, to change waits.
        """
        self.returncode: int | None = None
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        own: list[int] = []
        given: list[int] = []
        for number, wanted in enumerate((stdin, stdout, stderr)):
            if wanted == PIPE:
                read, write = os.pipe()
                ours, theirs = (write, read) if number == 0 else (read, write)
                stream = os.fdopen(ours, "w" if number == 0 else "r", encoding="utf-8")
                setattr(self, ("stdin", "stdout", "stderr")[number], stream)
            elif wanted == DEVNULL:
                theirs = os.open(os.devnull, os.O_RDWR)
            else:
                theirs = os.dup(given[1] if wanted == STDOUT else wanted)
            own.append(theirs)
            given.append(theirs)
        self._reply, reply = socket.socketpair()
        request = {
            "words": [str(word) for word in words],
            "env": dict(env),
            "cwd": str(cwd),
            "terminal": terminal,
            "prepare": (prepare.__module__, prepare.__name__) if prepare else None,
            "prepared": dict(prepared or {}),
        }
        socket.send_fds(_parent(), [json.dumps(request).encode()], [*given, reply.fileno()])
        reply.close()
        for number in own:
            os.close(number)
        self._answers = self._reply.makefile("r")
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        """The exit status, where it has ended."""
        if self.returncode is None and select.select([self._reply], [], [], 0)[0]:
            self._read_status()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit status."""
        if self.returncode is None:
            if not select.select([self._reply], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("kimi-prov", timeout or 0)
            self._read_status()
        assert self.returncode is not None
        return self.returncode

    def _read_status(self) -> None:
        self.returncode = int(self._answers.readline())
        self._answers.close()
        self._reply.close()

    def communicate(
        self, given: str | None = None, timeout: float | None = None
    ) -> tuple[str, str]:
        """Write all of standard input, read what it prints to its end, and wait for that."""
        told: dict[int, str] = {}

        def read(number: int, stream: IO[str]) -> None:
            told[number] = stream.read()
            stream.close()

        streams = [(1, self.stdout), (2, self.stderr)]
        threads = [
            threading.Thread(target=read, args=(number, stream), daemon=True)
            for number, stream in streams
            if stream is not None and not stream.closed
        ]
        for thread in threads:
            thread.start()
        if self.stdin is not None and not self.stdin.closed:
            try:
                self.stdin.write(given or "")
                self.stdin.close()
            except BrokenPipeError:
                pass
        for thread in threads:
            thread.join(timeout)
            if thread.is_alive():
                raise subprocess.TimeoutExpired("kimi-prov", timeout or 0)
        self.wait(timeout)
        return told.get(1, ""), told.get(2, "")

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def run(
    *words: object, given: str | None = None, timeout: float = 120, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `given` is what standard input has."""
    process = Process(*words, stdin=DEVNULL if given is None else PIPE, **options)
    try:
        out, err = process.communicate(given, timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess([*map(str, words)], process.wait(), out, err)


def limit_files(size: int) -> None:
    """Prepare a process that may write no file of more than so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@cache
def _parent() -> socket.socket:
    """Start the process that forks, once; it ends with this one, when our end is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST)
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=DEVNULL,
        env=environment,
    ).returncode = 0
    theirs.close()
    atexit.register(ours.close)
    return ours


def _serve(own: socket.socket) -> None:
    """Fork for each request, until nobody is left who asks."""
    # What was forked is waited for by nobody here.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Ctrl-C ends the tests, and with them this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, given, _, _ = socket.recv_fds(own, _MAX_REQUEST, 4)
        if not data:
            return
        if os.fork() == 0:
            own.close()
            _keep(json.loads(data), given)
            return
        for number in given:
            os.close(number)


def _keep(request: dict[str, Any], given: list[int]) -> None:
    """Fork the command; tell its number and, when it has ended, its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, reply = given
    pid = os.fork()
    if pid == 0:
        os.close(reply)
        _become(request, streams)
    for number in streams:
        os.close(number)
    os.write(reply, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    os.write(reply, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Be the command, with signals as a shell gives them to what it starts in the foreground."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if request["terminal"]:
        os.setsid()
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.closerange(3, max(streams) + 1)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
    sys.argv = ["kimi-prov", *request["words"]]
    if request["prepare"]:
        module, name = request["prepare"]
        getattr(importlib.import_module(module), name)(**request["prepared"])
    cli.main()


def read_code() -> None:
    """Import what commands import, all of it."""

    def read(group: LazyGroup) -> None:
        for command in group.commands.values():
            if isinstance(command, LazyGroup):
                read(command)

    read(cli.cli)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        read_code()
        _serve(asked)
