"""Machines of one chip, told by what their owners write: a Mac is refused, others are named."""

from __future__ import annotations

import re
from typing import NamedTuple

from kimi_prov.errors import UserError

_MAX_LENGTH = 200_000
_MAC = re.compile(
    r"\bApple (M\d(?: (?:Ultra|Max|Pro))?)\b|\bDarwin Kernel Version\b|\bModel Name: Mac\b"
)
_NO_MAC = re.compile(r"\b(?:EPYC|Xeon|Threadripper|NVIDIA|Instinct|x86_64)\b", re.IGNORECASE)

# Chips with processor and GPU on one memory: what names one, and its rows of the catalogue.
_CHIPS = (
    (
        re.compile(
            r"\bGB10\b|\bDGX Spark\b|\bAscent GX10\b|\bThinkStation PGX\b|\bAI TOP ATOM\b"
            r"|\bVeriton GN100\b|\bZGX Nano\b|\bEdgeXpert\b",
            re.IGNORECASE,
        ),
        ("NVIDIA GB10", "GB10"),
    ),
    (
        re.compile(r"\b(?:Jetson|AGX|IGX)\b[\w ]{0,12}\bThor\b|\bJetson T[45]000\b", re.IGNORECASE),
        ("Jetson Thor", "Jetson Thor"),
    ),
    (
        re.compile(r"\bRyzen AI Max\+? (?:PRO )?395\b|\bStrix Halo\b", re.IGNORECASE),
        ("Ryzen AI Max+ 395", "Radeon 8060S"),
    ),
)


class Chip(NamedTuple):
    """The catalogue's rows of a chip with processor and GPU, and the line that names it."""

    cpu: str
    gpu: str
    line: int


def find_chip(text: str) -> Chip | None:
    """Return the chip that a text names in place of a processor and a GPU."""
    for position, line in enumerate(text[:_MAX_LENGTH].splitlines(), start=1):
        for pattern, names in _CHIPS:
            if pattern.search(line):
                return Chip(*names, position)
    return None


def refuse(text: str, name: str) -> None:
    """Raise UserError where a text is that of a Mac and of nothing else."""
    start = text[:_MAX_LENGTH]
    mac = _MAC.search(start)
    if mac is None or _NO_MAC.search(start):
        return
    raise UserError(
        f"{name}: this is a Mac{f' (Apple {mac[1]})' if mac[1] else ''}: no engine of ours runs on "
        "macOS or on Apple's processors",
        fix="serve it by MLX or llama.cpp, which this program does not provision; or check a Linux "
        "server, of x86-64 for the engines' locks",
    )
