"""Read and write safetensors files with the standard library alone.

A file has eight bytes of length, that many bytes of JSON (each tensor's type, shape and offsets),
then the data.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from kimi_prov.contract.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Data begins at a cache line, for kernels that copy from it.
_ALIGNED = 64
_MAX_HEADER_BYTES = 100_000_000
_CHUNK = 4 << 20


@dataclass(frozen=True)
class Part:
    """A tensor of one dimension to be written: its name, its type, and the file of its bytes."""

    name: str
    kind: str
    path: str

    @property
    def width(self) -> int:
        """Return the bytes of one value."""
        return {"I8": 1, "F32": 4}[self.kind]


def read_header(path: str) -> dict[str, dict[str, Any]]:
    """Return each tensor's `dtype` and `shape` by name; raises HostError for other files."""
    try:
        with open(path, "rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            document = json.loads(stream.read(min(length, _MAX_HEADER_BYTES)))
            return {name: dict(row) for name, row in document.items() if name != "__metadata__"}
    except (struct.error, ValueError, AttributeError, TypeError):
        raise HostError(
            f"{path}: is not a safetensors file",
            "hash the weights again: set weights_reverify",
        ) from None


def write(path: str, parts: Sequence[Part]) -> tuple[int, str]:
    """Write the parts into one file, flushed to the disk; return its bytes and SHA-256."""
    rows: dict[str, Any] = {}
    end = 0
    for part in parts:
        size = os.path.getsize(part.path)
        place = [end, end + size]
        rows[part.name] = {
            "dtype": part.kind,
            "shape": [size // part.width],
            "data_offsets": place,
        }
        end += size
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    hasher = hashlib.sha256()
    with open(path, "wb") as stream:
        _put(stream, hasher, [struct.pack("<Q", len(text)), text])
        for part in parts:
            with open(part.path, "rb") as piece:
                while True:
                    chunk = piece.read(_CHUNK)
                    if not chunk:
                        break
                    _put(stream, hasher, [chunk])
        stream.flush()
        os.fsync(stream.fileno())
    return 8 + len(text) + end, hasher.hexdigest()


def _put(stream: BinaryIO, hasher: Any, chunks: list[bytes]) -> None:  # noqa: ANN401
    for chunk in chunks:
        stream.write(chunk)
        hasher.update(chunk)
