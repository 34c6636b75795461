"""Writes wheels again with the machine code of one compute capability alone, to travel small.

A CUDA library carries its kernels in a section of containers: a head (magic 0xBA55ED50, version,
its size, size of all that follows), then entries, each with its kind (1 PTX, 2 machine code), the
sizes of its head and body, and the capability at byte 28. The bodies that are not wanted become
zeros, which compress to nothing; nothing moves. Source: the layout as nvcc 12 and 13 write it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import struct
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAGIC = struct.pack("<I", 0xBA55ED50)
_PTX, _MACHINE_CODE = 1, 2
_HEAD = 16


def strip(wheel: Path, into: Path, capability: int, without: str = "$^") -> None:
    """Write a wheel again with one capability's code (90 for 9.0), its RECORD right.

    `without`: a pattern of files that are left out.
    """
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as new:
        kept = [name for name in before.namelist() if not re.search(without, name)]
        record = next(name for name in kept if name.endswith(".dist-info/RECORD"))
        rows: list[tuple[str, str, str]] = []
        for name in kept:
            if name == record or name.endswith("/"):
                continue
            data = bytearray(before.read(name))
            if data.startswith(b"\x7fELF"):
                blank(data, capability)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            rows.append((name, f"sha256={digest}", str(len(data))))
            new.writestr(before.getinfo(name), data, zipfile.ZIP_DEFLATED)
        told = io.StringIO()
        csv.writer(told, lineterminator="\n").writerows([*rows, (record, "", "")])
        new.writestr(record, told.getvalue())


def blank(library: bytearray, capability: int) -> int:
    """Overwrite with zeros what a library has for other capabilities; return how many bytes."""
    zeros = 0
    for container in _containers(library):
        ours = any(kind == _MACHINE_CODE and cap == capability for kind, cap, _, _ in container)
        for kind, cap, at, body in container:
            # PTX is compiled by the driver, where there is nothing else.
            from_ptx = kind == _PTX and not ours and cap <= capability
            wanted = from_ptx or (kind == _MACHINE_CODE and cap == capability)
            if not wanted:
                library[at : at + body] = bytes(body)
                zeros += body
    return zeros


def _containers(data: bytearray) -> Iterator[list[tuple[int, int, int, int]]]:
    """Give the kind, capability, place and size of each entry's body, container by container.

    Not in .nv_fatbin alone: cuBLAS, cuFFT and cuSPARSELt have them in other sections as well.
    """
    start = 0
    while (start := data.find(_MAGIC, start)) >= 0:
        version, head, size = struct.unpack_from("<HHQ", data, start + 4)
        at, end = start + head, start + head + size
        if version != 1 or head != _HEAD or end > len(data):
            start += 4
            continue
        found = []
        while at < end:
            kind, _, head, body = struct.unpack_from("<HHIQ", data, at)
            if kind not in {_PTX, _MACHINE_CODE} or not head or at + head + body > end:
                break
            found.append((kind, struct.unpack_from("<I", data, at + 28)[0], at + head, body))
            at += head + body
        yield found
        start = max(at, start + 4)
