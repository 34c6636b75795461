"""Which GPUs the engine's own CUDA libraries have machine code for; prints JSON.

A library carries it in a section of containers: a head (magic 0xBA55ED50, version, its size, size
of all that follows), then entries, each with its kind (1 PTX, 2 machine code), the sizes of its
head and body, and the compute capability at byte 28. `a` ties it to that capability alone.
No GPU is needed for it.
"""

import json
import mmap
import pathlib
import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)
EXACT = 0x1100000


def sections(data):
    """Offset and size of each section that holds containers (ELF, 64 bits)."""
    table = struct.unpack_from("<Q", data, 0x28)[0]
    size, number, names = struct.unpack_from("<HHH", data, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", data, table + n * size) for n in range(number)]
    for row in rows:
        start = rows[names][4] + row[0]
        if data[start : data.find(b"\0", start)] in (b".nv_fatbin", b"__nv_relfatbin"):
            yield row[4], row[5]


def entries(data, start, end):
    """Kind, capability and flags of each entry."""
    while (start := data.find(MAGIC, start, end)) >= 0:
        version, head, size = struct.unpack_from("<HHQ", data, start + 4)
        if version != 1 or start + head + size > end:
            start += 4
            continue
        at, start = start + head, start + head + size
        while at < start:
            kind, _, head, body = struct.unpack_from("<HHIQ", data, at)
            yield kind, *struct.unpack_from("<I8xQ", data, at + 28)
            at += head + body


def modules(library):
    """Modules of machine code for each capability: {"9.0": 67, "12.0": 67}."""
    found = {}
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for start, size in sections(data):
            for kind, number, flags in entries(data, start, start + size):
                if kind == 2:
                    name = f"{number // 10}.{number % 10}"
                    exact = "a" if flags & EXACT else ""
                    found[name + exact] = found.get(name + exact, 0) + 1
    return found


folder = pathlib.Path(sys.argv[1])
sys.stdout.write(json.dumps({str(lib): modules(lib) for lib in sorted(folder.rglob("*.so"))}))
