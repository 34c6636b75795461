"""How the probe reads a machine: without changes, and the same on a recorded tree in tests."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

from kimi_prov.contract.paths import join_root
from kimi_prov.on_host.system import process

if TYPE_CHECKING:
    from collections.abc import Sequence

# The last two have the tools of the drivers in container images, and of AMD's packages.
_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    ":/usr/local/nvidia/bin:/opt/rocm/bin"
)


class Machine:
    """Files below `root` and the output of commands; None for what is not available."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")

    @property
    def live(self) -> bool:
        """Return whether this is the running machine, so that system calls apply to it."""
        return not self.root

    def path(self, name: str) -> str:
        """Return an absolute path of the machine below this root."""
        return join_root(self.root, name)

    def read(self, name: str) -> str | None:
        """Return a small text file without its last line break, or None where it cannot be read."""
        try:
            with open(self.path(name), encoding="utf-8", errors="replace") as stream:
                return stream.read().rstrip("\n")
        except OSError:
            return None

    def read_int(self, name: str) -> int | None:
        """Return the one whole number in a file; None for anything else."""
        text = self.read(name)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def node(self, name: str) -> int | None:
        """Return a NUMA node; the kernel says -1 for a device whose node it does not know."""
        number = self.read_int(name)
        return number if number is not None and number >= 0 else None

    def resolve(self, name: str) -> str:
        """Return the path of the machine to which a path with links leads."""
        start = os.path.realpath(self.root) if self.root else ""
        return os.path.realpath(self.path(name))[len(start) :]

    def exists(self, name: str) -> bool:
        """Return whether a path exists, as far as we may see."""
        return os.path.exists(self.path(name))

    def glob(self, pattern: str) -> list[str]:
        """Return the paths of the machine that match, sorted."""
        found = glob.glob(self.path(pattern))
        return sorted(path[len(self.root) :] for path in found)

    def which(self, command: str) -> str | None:
        """Return the full path of a command, searched in the system's own folders too."""
        for folder in _PATH.split(":"):
            if os.access(self.path(f"{folder}/{command}"), os.X_OK):
                return f"{folder}/{command}"
        return None

    def run(self, argv: Sequence[str], timeout_s: float = 10.0) -> str | None:
        """Return the output of a command that only reads; None where it is missing or too slow.

        The exit status is ignored: systemctl and others print what they know and exit 1.
        """
        if not self.live:
            return None
        program = self.which(argv[0])
        if program is None:
            return None
        environment = {"PATH": _PATH, "LC_ALL": "C", "LANG": "C"}
        done = process.run(program, *argv[1:], timeout=timeout_s, env=environment)
        return None if isinstance(done, process.Unfinished) else done.stdout


def parse_fields(text: str | None, separator: str) -> dict[str, str]:
    """Return lines of `key<separator>value` as a dictionary; the first of a key counts."""
    found: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, mark, value = line.partition(separator)
        if mark:
            found.setdefault(key.strip(), value.strip().strip('"'))
    return found
