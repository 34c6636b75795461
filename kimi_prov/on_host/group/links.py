"""Connections between supervisors: the head listens, the ranks connect, addresses are checked."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, field

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.group.members import Group, normalize_address
from kimi_prov.on_host.group.messages import BadMessageError, Message, Reader, encode

_CONNECT_S = 2.0
_CHUNK = 65536


@dataclass
class Link:
    """A connection to the host at `address`; `rank` is None before its hello."""

    socket: socket.socket
    address: str
    rank: int | None = None
    reader: Reader = field(default_factory=Reader)

    def receive(self) -> tuple[list[Message], str | None]:
        """Return the messages that came in, and why the connection has ended, or None."""
        try:
            data = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return [], None
        except OSError as error:
            return [], error.strerror or "the connection broke"
        if not data:
            return [], "the connection ended"
        try:
            return self.reader.feed(data), None
        except BadMessageError as error:
            return [], f"it sent something that is no message: {error}"

    def send(self, kind: str, fields: dict[str, object]) -> bool:
        """Send a whole message; return False where the other side takes none."""
        try:
            line = encode(kind, **fields)
            return self.socket.send(line) == len(line)
        except OSError:
            return False

    def close(self) -> None:
        """Close the connection; what was sent before still arrives."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        self.socket.close()


def listen(group: Group, port: int) -> socket.socket:
    """Open the head's port on its address in the group."""
    found = socket.socket(_find_family(group.this_host.address), socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((group.this_host.address, port))
    except OSError as error:
        found.close()
        fix = (
            "see `ip address` and `ss -ltnp` there; kimi_group_address and kimi_group_port name it"
        )
        # The address may come up after this unit starts, and the port may become free later.
        raise HostError(
            f"{group.this_host.address} port {port} cannot be opened: {error.strerror}",
            fix,
            retryable=True,
        ) from error
    found.listen()
    found.setblocking(False)
    return found


def accept(listener: socket.socket) -> Link | None:
    """Accept the next connection; return None where it is gone again."""
    try:
        connection, address = listener.accept()
    except OSError:
        return None
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Link(connection, normalize_address(address[0].partition("%")[0]))


def connect(group: Group, port: int) -> tuple[Link | None, str]:
    """Connect to the head from this host's own address in the group; else return the reason."""
    found = socket.socket(_find_family(group.head.address), socket.SOCK_STREAM)
    try:
        found.settimeout(_CONNECT_S)
        found.bind((group.this_host.address, 0))
        found.connect((group.head.address, port))
    except OSError as error:
        found.close()
        return None, error.strerror or str(error)
    found.setblocking(False)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Link(found, group.head.address, rank=0), ""


def _find_family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
