"""A port for a server under test."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import cycle

# No connection takes these meanwhile: the kernel gives ports from 32768 on.
_PORTS = cycle(range(20_000 + os.getpid() % 10_000, 32_000))


def free_port() -> int:
    """Return a port that nothing listens on; each call gives another."""
    for port in _PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port
    raise AssertionError
