"""How the probe looks at a machine: read-only, and the same on a recorded tree in tests."""

from __future__ import annotations

import glob
import os
import re
import subprocess
from typing import Dict, List, Optional, Sequence

# The last two are where the drivers of images for containers and AMD's packages put their tools.
_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    ":/usr/local/nvidia/bin:/opt/rocm/bin"
)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class Machine:
    """Files below `root` and the output of commands; what cannot be had is None, never a guess."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")

    @property
    def live(self) -> bool:
        """Whether this is the machine we stand on, so that system calls tell about it too."""
        return not self.root

    def path(self, name: str) -> str:
        """Return where an absolute path of the machine lies for us."""
        return self.root + name

    def read(self, name: str) -> Optional[str]:
        """Return a small text file without its last line break, or None where it cannot be read."""
        try:
            with open(self.path(name), encoding="utf-8", errors="replace") as stream:
                return stream.read().rstrip("\n")
        except OSError:
            return None

    def read_int(self, name: str) -> Optional[int]:
        """Return what a file holds that is one whole number; None for anything else."""
        text = self.read(name)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def exists(self, name: str) -> bool:
        """Whether something is there, as far as we may see."""
        return os.path.exists(self.path(name))

    def glob(self, pattern: str) -> List[str]:
        """Return the paths of the machine that match, sorted."""
        found = glob.glob(self.path(pattern))
        return sorted(path[len(self.root) :] for path in found)

    def which(self, command: str) -> Optional[str]:
        """Return the full path of a command, looked for in the system's own folders too."""
        for folder in _PATH.split(":"):
            if os.access(self.path(f"{folder}/{command}"), os.X_OK):
                return f"{folder}/{command}"
        return None

    def run(self, argv: Sequence[str], timeout_s: float = 10.0) -> Optional[str]:
        """Return the output of a command that only reads; None where it is missing or too slow.

        The exit status is not looked at: systemctl and others print what they know and exit 1.
        """
        if not self.live:
            return None
        program = self.which(argv[0])
        if program is None:
            return None
        environment = {"PATH": _PATH, "LC_ALL": "C", "LANG": "C"}
        try:
            done = subprocess.run(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s,
                env=environment,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode("utf-8", "replace")


def parse_list(text: Optional[str]) -> List[int]:
    """Return `0-3,8` as [0, 1, 2, 3, 8]; what is not a number is left out."""
    numbers: List[int] = []
    for part in (text or "").split(","):
        match = _RANGE.fullmatch(part.strip())
        if match:
            first = int(match.group(1))
            numbers.extend(range(first, int(match.group(2) or first) + 1))
    return sorted(set(numbers))


def format_list(numbers: Sequence[int]) -> str:
    """Return [0, 1, 2, 3, 8] as `0-3,8`: the kernel's own form."""
    parts: List[str] = []
    ordered = sorted(set(numbers))
    start = 0
    for position in range(len(ordered)):
        last = position + 1 == len(ordered)
        if last or ordered[position + 1] != ordered[position] + 1:
            first, end = ordered[start], ordered[position]
            parts.append(str(first) if first == end else f"{first}-{end}")
            start = position + 1
    return ",".join(parts)


def fields(text: Optional[str], separator: str) -> Dict[str, str]:
    """Return lines of `key<separator>value` as a dictionary; the first of a key counts."""
    found: Dict[str, str] = {}
    for line in (text or "").splitlines():
        key, mark, value = line.partition(separator)
        if mark:
            found.setdefault(key.strip(), value.strip().strip('"'))
    return found
