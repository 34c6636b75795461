"""Small pictures, made here."""

from __future__ import annotations

import hashlib
import struct
import zlib


def png(width: int, height: int, colour: tuple[int, int, int]) -> bytes:
    """A PNG of one colour."""
    return _png(width, height, bytes(colour) * (width * height))


def noise(width: int, height: int, seed: int) -> bytes:
    """A PNG of random colours, the same for the same seed."""
    drawn = hashlib.shake_256(str(seed).encode()).digest(3 * width * height)
    return _png(width, height, drawn)


def _png(width: int, height: int, pixels: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = [b"\0" + pixels[at : at + 3 * width] for at in range(0, len(pixels), 3 * width)]
    data = zlib.compress(b"".join(rows))
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts
