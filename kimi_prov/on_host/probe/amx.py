"""Whether the kernel lets a process use the tile registers that AMX needs."""

from __future__ import annotations

import ctypes
import errno
import platform

_ARCH_PRCTL = 158
_GET_XCOMP_SUPP = 0x1021
_TILE_DATA = 1 << 18


def read_permission() -> bool | None:
    """Return the kernel's support of the tiles' state; None where the call does not exist.

    This queries and does not request: a permission would stay with this process. The processor may
    list AMX although the kernel (before 5.16) or the hypervisor does not grant it.
    """
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return None
    mask = ctypes.c_uint64(0)
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
        done = call(ctypes.c_long(_ARCH_PRCTL), ctypes.c_int(_GET_XCOMP_SUPP), ctypes.byref(mask))
    except (OSError, AttributeError):
        return None
    if done != 0:
        return False if ctypes.get_errno() == errno.EINVAL else None
    return bool(mask.value & _TILE_DATA)
