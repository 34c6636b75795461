"""The unit with which a running engine was started.

The engine's environment holds the config digest of that unit, and the unit itself is stored under
its digest for as long as the engine runs. So a run after one that was killed between writing and
restarting still finds the unit to compare with, and so does a later version that computes its
digests otherwise.
"""

from __future__ import annotations

import os
from pathlib import Path

from kimi_prov.contract import paths, unit_names
from kimi_prov.contract.unit_comparison import (
    DIGEST_VARIABLE,
    compute_digest,
    parse_form,
    read_digest,
)
from kimi_prov.on_host.system.files import make_directory, read_text, write_atomic

_DROP_IN = "{}.d/10-plan.conf"
_SUFFIX = ".conf"


class UnitPaths:
    """Paths of the units, of their stored copies, of /proc and of the key, below one root."""

    def __init__(self, root: str = "/") -> None:
        base = Path(root)
        self.root = base
        self.units = base / paths.UNITS[1:]
        self.kept = base / paths.STARTED[1:]
        self.proc = base / "proc"
        self.machine_key = base / paths.MACHINE_KEY[1:]
        self.program = base / paths.ZIPAPP[1:]
        self.proxy_config = base / paths.PROXY_CONFIG[1:]

    def file(self, unit: str) -> Path:
        """Return the path of a unit's file, which instances share."""
        return self.units / unit_names.find_shared_file(unit)

    def drop_in(self, unit: str) -> Path:
        """Return the path of one instance's drop-in."""
        return self.units / _DROP_IN.format(unit)


def get_pid(state: dict[str, str]) -> str:
    """Return the process of a unit, or of a check before its start; "0" where there is none."""
    return next((state[k] for k in ("MainPID", "ControlPID") if state.get(k, "0") != "0"), "0")


def read_running_digest(pid: str, places: UnitPaths) -> str | None:
    """Read the digest with which a process was started: empty where it has none, None if unseen."""
    try:
        variables = (places.proc / str(int(pid)) / "environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    prefix = f"{DIGEST_VARIABLE}=".encode()
    return next((v[len(prefix) :].decode() for v in variables if v.startswith(prefix)), "")


def find_unit_text(unit_stamp: str, unit: str, places: UnitPaths) -> str | None:
    """Return the text of the unit with this digest, stored or installed; None where there is none.

    Beside a drop-in with the digest, a killed run may have written a newer template. The pair is
    used where the digest is that of both, and else where the template is no younger: earlier
    versions computed their digests otherwise, and wrote the template first.
    """
    if not unit_stamp or not unit_stamp.isalnum():
        return None
    kept = read_text(places.kept / (unit_stamp + _SUFFIX))
    if kept:
        return kept
    drop_in = read_text(places.drop_in(unit))
    if read_digest(drop_in) != unit_stamp:
        return None
    text = join_unit(read_text(places.file(unit)), drop_in)
    return (
        text
        if compute_digest(parse_form(text)) == unit_stamp or _is_in_order(unit, places)
        else None
    )


def _is_in_order(unit: str, places: UnitPaths) -> bool:
    try:
        return places.file(unit).stat().st_mtime <= places.drop_in(unit).stat().st_mtime
    except OSError:
        return False


def join_unit(template: str, drop_in: str) -> str:
    """Return a unit and its drop-in as systemd reads them, one after the other."""
    return f"{template.rstrip()}\n{drop_in}"


def store_unit(unit_stamp: str, text: str, places: UnitPaths) -> None:
    """Store a copy of a unit under its digest."""
    path = places.kept / (unit_stamp + _SUFFIX)
    if read_text(path) != text:
        make_directory(places.kept, 0o700)
        write_atomic(path, text, 0o600)


def remove_all_but(stamps: list[str], places: UnitPaths) -> None:
    """Remove the stored units that no process runs any more."""
    for path in sorted(places.kept.glob("*" + _SUFFIX)):
        if path.stem not in stamps:
            os.unlink(str(path))
