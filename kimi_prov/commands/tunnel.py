"""A port of this computer that leads to a node's, by ssh through a login node."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
from typing import IO

from kimi_prov.commands.slurm_folder import SSH, last_line
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError

ADDRESS = "127.0.0.1"
_USUAL_PORT = 8000
_END_S = 5


class Tunnel:
    """`ssh -N -L`, from its start to `close`."""

    def __init__(self, login: str, local_port: int, node: str, port: int) -> None:
        self._login = login
        self._forward = ["-L", f"{ADDRESS}:{local_port}:{node}:{port}"]
        self._told: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the tunnel)
        line = [*SSH, "-N", "-T", "-o", "ExitOnForwardFailure=yes", *self._forward, "--", login]
        try:
            self._ssh = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._told
            )
        except FileNotFoundError:
            raise UserError("ssh is not on this machine", fix="install it") from None

    def check(self) -> None:
        """Raise UserError, exit 4, where ssh has ended."""
        code = self._ssh.poll()
        if code is None:
            return
        self._told.seek(0)
        told = clean_text.block(self._told.read().decode(errors="replace")).strip()
        raise UserError(
            f"{self._login}: ssh -N {' '.join(self._forward)} ended with status {code}: "
            f"{last_line(told)}",
            fix="see whether the login node allows forwarding (AllowTcpForwarding)",
            exit_code=ExitCode.UNREACHABLE,
        )

    def close(self) -> None:
        """End it. One that went over a connection of yours (ControlPath) is taken back there."""
        if self._ssh.poll() is None:
            back = ["ssh", "-O", "cancel", *self._forward, "--", self._login]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(back, capture_output=True, timeout=_END_S, check=False)
            self._ssh.terminate()
            try:
                self._ssh.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._ssh.kill()
                self._ssh.wait()
        self._told.close()


def free_port(wanted: int | None) -> int:
    """Return a port of this computer: the one that is wanted, else 8000 or one that is free.

    Raises UserError, exit 3, where the wanted one is taken.
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
