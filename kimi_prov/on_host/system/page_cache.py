"""How much of a file the kernel has in memory, by mincore(2).

The program for that, fincore, is in a package of its own on some systems and missing on servers.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Looked at in one piece: a byte comes back for each page.
_WINDOW = 1 << 30


def measure_resident(path: Path) -> tuple[int, int]:
    """Return bytes of a file that are in the page cache, whole pages, and its size in bytes.

    Raises OSError where it cannot be looked at.
    """
    library = ctypes.CDLL(None, use_errno=True)
    pages = 0
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        for offset in range(0, size, _WINDOW):
            length = min(_WINDOW, size - offset)
            # Writable, and so with an address that Python tells; nothing is written.
            window = mmap.mmap(
                stream.fileno(),
                length,
                flags=mmap.MAP_PRIVATE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
                offset=offset,
            )
            found = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
            first = ctypes.c_ubyte.from_buffer(window)
            failed = library.mincore(ctypes.byref(first), ctypes.c_size_t(length), found)
            code = ctypes.get_errno()
            # The mapping cannot be closed while something points into it.
            del first
            window.close()
            if failed:
                raise OSError(code, os.strerror(code), str(path))
            pages += bytes(found).count(1)
    return pages * mmap.PAGESIZE, size
