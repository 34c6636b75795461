"""A local port that is forwarded to a server: by ssh, or by kubectl."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from kimi_prov.commands.common.ssh import SSH, find_last_line
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.operate.kubernetes.kubectl import make_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.operate.kubernetes.kubectl import Kubectl

ADDRESS = "127.0.0.1"
_USUAL_PORT = 8000
_END_S = 5
_OPENS_S = 30.0
_POLL_INTERVAL_S = 0.2


@dataclass(frozen=True)
class Program:
    """A program that forwards a port: command line, name in messages, and advice at its end."""

    line: Sequence[str]
    where: str
    called: str
    fix: str
    # Closes the forwarding where another process of the program holds it.
    back: Sequence[str] = ()
    environment: Mapping[str, str] | None = None
    # Ctrl-C at the terminal does not reach the program.
    apart: bool = False


class Tunnel:
    """A program that forwards a port, from its start to `close`."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._told: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the tunnel)
        try:
            self._process = subprocess.Popen(
                program.line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._told,
                env=program.environment,
                process_group=0 if program.apart else None,
            )
        except FileNotFoundError:
            raise UserError(f"{program.line[0]} is not on this machine", fix="install it") from None

    def check(self) -> None:
        """Raise UserError, exit 4, where the program has ended."""
        code = self._process.poll()
        if code is None:
            return
        self._told.seek(0)
        told = clean_text.clean_block(self._told.read().decode(errors="replace")).strip()
        raise UserError(
            f"{self._program.where}: {self._program.called} ended with status {code}: "
            f"{find_last_line(told)}",
            fix=self._program.fix,
            exit_code=ExitCode.UNREACHABLE,
        )

    def opens(self, port: int) -> None:
        """Wait until the local port accepts a connection.

        Raises UserError, exit 4, where the program ends before, or opens no port in time.
        """
        until = time.monotonic() + _OPENS_S
        while not is_open(port):
            self.check()
            if time.monotonic() > until:
                raise UserError(
                    f"{self._program.called} opened no port within {_OPENS_S:.0f} s",
                    fix="try it by hand",
                    exit_code=ExitCode.UNREACHABLE,
                )
            time.sleep(_POLL_INTERVAL_S)

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            if self._program.back:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(
                        self._program.back, capture_output=True, timeout=_END_S, check=False
                    )
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._told.close()


def open_to_node(
    login: str, local_port: int, node: str, port: int, *, apart: bool = False
) -> Tunnel:
    """Open `ssh -N -L`; over a shared connection (ControlPath) the forwarding is closed there.

    `apart`: signals of the terminal do not reach it.
    """
    forward = ["-L", f"{ADDRESS}:{local_port}:{node}:{port}"]
    line = [*SSH, "-N", "-T", "-o", "ExitOnForwardFailure=yes", *forward, "--", login]
    return Tunnel(
        Program(
            line,
            login,
            f"ssh -N {' '.join(forward)}",
            "see whether the login node allows forwarding (AllowTcpForwarding)",
            ["ssh", "-O", "cancel", *forward, "--", login],
            apart=apart,
        )
    )


def open_to_host(
    login: Sequence[str],
    local_port: int,
    port: int,
    password: Path | None,
    *,
    apart: bool = False,
) -> Tunnel:
    """Open `ssh -N -L` to a port on a managed machine's loopback.

    `login` is ssh's command line as Ansible builds it: program, options, host. Ansible's shared
    connection ends with the run, so this one is not shared. `password`: a program that prints it,
    where the machine accepts no key. `apart`: signals of the terminal do not reach it.
    """
    program, *options, host = login
    forward = ["-L", f"{ADDRESS}:{local_port}:{ADDRESS}:{port}"]
    # If an option is given twice, ssh uses the first.
    own = ["ControlMaster=no", "ControlPath=none", "ExitOnForwardFailure=yes"]
    own += [f"BatchMode={'no' if password else 'yes'}", "ServerAliveInterval=15"]
    ours = [word for option in own for word in ("-o", option)]
    asked = {"SSH_ASKPASS": str(password), "SSH_ASKPASS_REQUIRE": "force"} if password else {}
    return Tunnel(
        Program(
            [program, *ours, "-N", "-T", *forward, *options, "--", host],
            host,
            f"ssh -N {' '.join(forward)}",
            "see whether the machine's sshd allows forwarding (AllowTcpForwarding)",
            environment={**os.environ, **asked},
            apart=apart,
        )
    )


def open_to_service(
    kubectl: Kubectl, service: str, local_port: int, port: int, *, apart: bool = False
) -> Tunnel:
    """Open `kubectl port-forward` to a service, which lasts until the chosen pod ends.

    `apart`: signals of the terminal do not reach it.
    """
    words = ("port-forward", f"--address={ADDRESS}", f"service/{service}", f"{local_port}:{port}")
    return Tunnel(
        Program(
            kubectl.argv(*words),
            kubectl.where,
            "kubectl port-forward",
            f"try  {kubectl.format_command(*words)}",
            environment=make_environment(),
            apart=apart,
        )
    )


def is_open(port: int) -> bool:
    """Whether a local port accepts a connection."""
    with socket.socket() as probe:
        return probe.connect_ex((ADDRESS, port)) == 0


def is_trusted(port: int, context: ssl.SSLContext) -> bool:
    """Whether a client with this context accepts the server at a local port.

    Raises OSError where no server answers.
    """
    with socket.create_connection((ADDRESS, port), timeout=_END_S) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=ADDRESS):
                return True
        except ssl.SSLCertVerificationError:
            return False


def find_free_port(wanted: int | None) -> int:
    """Return a local port: the wanted one, else 8000 or a free one.

    Raises UserError, exit 3, where the wanted port is taken.
    """
    for port in (_USUAL_PORT, 0) if wanted is None else (wanted,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESS, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise UserError(
        f"port {wanted} of this computer is taken, or not yours to open",
        fix="give another --port, or none: a free one is found",
        exit_code=ExitCode.BLOCKED,
    )
