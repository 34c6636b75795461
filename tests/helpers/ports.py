"""A port for a server under test."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import cycle

# No connection takes these meanwhile: the kernel gives ports from 32768 on. Two runs beside each
# other, whose process numbers are near, begin far apart: between a look and the server's own bind
# the other would find the same one free, and two of HAProxy's would share it.
_FIRST, _COUNT = 20_000, 12_000
_BEGIN = os.getpid() * 7919 % _COUNT
_PORTS = cycle(_FIRST + (_BEGIN + at) % _COUNT for at in range(_COUNT))


def free_port() -> int:
    """Return a port that nothing listens on; each call gives another."""
    for port in _PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port
    raise AssertionError
