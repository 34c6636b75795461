"""A stand-in for `nvidia-smi` that prints the recorded output of a real one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kimi_prov.errors import UserError
from kimi_prov.on_host.probe.nvidia_smi import parse_query, parse_table

if TYPE_CHECKING:
    from pathlib import Path

SCHEME = "nvidia-smi:"
_FILES = {
    "query": "nvidia-smi-q.xml",
    "topology": "nvidia-smi-topo-m.txt",
    "links": "nvidia-smi-nvlink-s.txt",
}
_PROGRAM = '''#!/usr/bin/python3
"""nvidia-smi, answering from the recording {name}: a stand-in, there is no GPU here."""
import sys

ANSWERS = {answers}
ROWS = {rows}


def table(columns):
    for row in ROWS:
        print(", ".join(row.get(column, "[N/A]") for column in columns))


asked = sys.argv[1:]
columns = [word.partition("=")[2].split(",") for word in asked if word.startswith("--query-gpu=")]
if columns:
    table(columns[0])
elif any(word.startswith("--query-compute-apps") for word in asked):
    pass  # nothing runs on GPUs that are not there
elif asked[:2] == ["topo", "-m"]:
    print(ANSWERS["topology"], end="")
elif asked[:2] == ["nvlink", "-s"]:
    print(ANSWERS["links"], end="")
elif {{"-q", "-x"}} <= set(asked):
    print(ANSWERS["query"], end="")
elif not asked:
    print("recorded (stand-in): " + ", ".join(row["name"] for row in ROWS))
else:
    sys.exit(f"this stand-in of nvidia-smi was not recorded answering {{' '.join(asked)}}")
'''


def make_program(folder: Path) -> str:
    """Return the source of the stand-in for a recorded folder.

    Raises UserError where the folder holds no answer of nvidia-smi.
    """
    said = {name: _read_text(folder / file) for name, file in _FILES.items()}
    listed = parse_table(_read_text(folder / "gpus.csv") or None)
    known = parse_query(said["query"])
    if known is None or not listed:
        raise UserError(
            f"{folder}: it holds no recorded nvidia-smi",
            fix=f"name a folder that holds {_FILES['query']} and gpus.csv",
        )
    uuids = [str(row["uuid"]) for row in known["gpus"]]
    rows = [
        {
            **{name: value.removesuffix(" MiB") for name, value in row.items()},
            # Recordings hold no serial numbers, but each card gets a UUID of its own.
            "uuid": f"{uuid[:-2]}{index:02d}",
            "memory.used": "0",
        }
        for index, (row, uuid) in enumerate(zip(listed, uuids, strict=True))
    ]
    return _PROGRAM.format(
        name=folder.name,
        answers=json.dumps(said, indent=1),
        rows=json.dumps(rows, indent=1),
    )


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
