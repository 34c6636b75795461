"""Find the wheels of a lock in a directory of the control machine."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Pin(NamedTuple):
    """A package of a lock: name and version as in wheels' file names, and the allowed digests."""

    name: str
    version: str
    sha256: frozenset[str]


def read_pins(lock: str) -> list[Pin]:
    """Read the pins of a lock made by `uv pip compile --generate-hashes`."""
    pins: list[Pin] = []
    for line in lock.splitlines():
        if match := _PIN.match(line):
            pins.append(Pin(normalize_name(match.group(1)), match.group(2), frozenset()))
        if pins and (digest := _HASH.search(line)):
            pins[-1] = pins[-1]._replace(sha256=pins[-1].sha256 | {digest.group(1)})
    return pins


def list_pinned_wheels(lock: Path, directory: str | None) -> list[str]:
    """List the wheels in `directory` whose digests the lock allows.

    Empty when `directory` is None, a URL or missing: the installer reads the URL itself, or the
    index has to have everything.
    """
    if not directory or "://" in directory or not Path(directory).is_dir():
        return []
    by_name = {(pin.name, pin.version): pin for pin in read_pins(lock.read_text(encoding="utf-8"))}
    wheels = []
    for path in sorted(Path(directory).glob("*.whl")):
        parts = path.name.split("-")
        pin = by_name.get((normalize_name(parts[0]), parts[1])) if len(parts) >= 5 else None
        if pin is not None and _compute_sha256(path) in pin.sha256:
            wheels.append(str(path))
    return wheels


def normalize_name(text: str) -> str:
    """Return a distribution's name in the form of a lock."""
    return re.sub(r"[-_.]+", "-", text).lower()


def _compute_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
