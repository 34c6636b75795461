"""Facts: what a recording was read from, and what it does not tell."""

from __future__ import annotations

from typing import Literal, TypedDict

RecordedPart = Literal[
    "processor",
    "instructions",
    "memory",
    "NUMA nodes",
    "GPUs",
    "NVIDIA driver",
    "operating system",
    "disks",
]


class RecordedFacts(TypedDict):
    """What a recording was read from."""

    read: list[ReadFile]
    not_told: list[RecordedPart]
    """Parts of the machine of which no file tells: they may be there."""
    damaged: list[DamagedFile]
    skipped: list[str]
    """Files without any output that is known, or that cannot be read, with the reason."""


class ReadFile(TypedDict):
    """A file, and the output that was found in it."""

    file: str
    what: str


class DamagedFile(TypedDict):
    """A file that is there, and what is wrong with it."""

    file: str
    problem: str
