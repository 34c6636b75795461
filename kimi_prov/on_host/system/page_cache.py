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

# Bytes of a file per call: mincore returns a byte for each page.
_WINDOW = 1 << 30


def measure_resident(path: Path) -> tuple[int, int]:
    """Return a file's bytes in the page cache, in whole pages, and its size in bytes.

    Raises OSError where it cannot be read.
    """
    library = ctypes.CDLL(None, use_errno=True)
    pages = 0
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        for offset in range(0, size, _WINDOW):
            length = min(_WINDOW, size - offset)
            # Mapped writable, because Python then gives its address; nothing is written.
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
            # The mapping cannot be closed while an object points into it.
            del first
            window.close()
            if failed:
                raise OSError(code, os.strerror(code), str(path))
            pages += bytes(found).count(1)
    return pages * mmap.PAGESIZE, size
