"""Reports the supervisor's life and state to systemd, over the socket that systemd names."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """Sends states to systemd; without a socket, as outside a unit, it sends nothing."""

    def __init__(self, address: str | None) -> None:
        self._address = "\0" + address[1:] if address and address[0] == "@" else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Notifier:
        """Remove the address from the environment: child processes must not report to systemd."""
        address = environment.get("NOTIFY_SOCKET")
        for name in _VARIABLES:
            environment.pop(name, None)
        return cls(address)

    @classmethod
    def none(cls) -> Notifier:
        """Return a notifier that sends nothing."""
        return cls(None)

    def ready(self) -> None:
        """Report that the start is complete."""
        self._send("READY=1")

    def alive(self) -> None:
        """Keep the unit's watchdog from ending this process."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={text}")

    def _send(self, state: str) -> None:
        if self._socket is None or self._address is None:
            return
        try:
            self._socket.sendto(state.encode(), socket.MSG_DONTWAIT, self._address)
        except OSError:  # systemd restarts, or its queue is full: the next comes in a second
            return
