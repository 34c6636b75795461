"""Whether a time server keeps the machine's clock."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts import ClockFacts
    from kimi_prov.on_host.system.machine import Machine

# adjtimex(2): `status` in struct timex of a 64-bit Linux, and its flag for an unsynchronised clock.
_STATUS_AT = 40
_UNSYNCHRONIZED = 0x40
_LARGE_ENOUGH = 512


def describe_clock(machine: Machine) -> ClockFacts:
    """Return what the kernel knows; the caller adds `offset_s`, by its own clock."""
    return {"synchronized": _is_synchronized() if machine.live else None}


def _is_synchronized() -> bool | None:
    buffer = ctypes.create_string_buffer(_LARGE_ENOUGH)
    try:
        # With mode 0 it only reads.
        if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
            return None
    except (OSError, AttributeError):
        return None
    status = struct.unpack_from("i", buffer, _STATUS_AT)[0]
    return not status & _UNSYNCHRONIZED
