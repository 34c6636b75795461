"""The record of the last apply: read, replaced, and amended by other commands.

Separate from the code that describes a machine, so that the code that changes keys or the
certificate between two applies can write here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths as layout
from kimi_prov.contract.state_files import KEPT
from kimi_prov.on_host.system import files, kept_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.paths import Paths

SCHEMA = KEPT[layout.APPLIED].schema


def read(paths: Paths) -> kept_state.State:
    """Return what was applied last; empty where nothing was. Raises DamagedStateError."""
    return kept_state.read(paths, layout.APPLIED)


def write(paths: Paths, document: Mapping[str, Any]) -> None:
    """Replace the record, readable by root alone."""
    files.make_directory(paths.state, 0o700)
    files.write_json(str(paths.applied), document, mode=0o600)


def amend(paths: Paths, **changed: object) -> None:
    """Store what a command other than apply changed (keys, the certificate)."""
    there = read(paths)
    if there and any(there.get(name) != value for name, value in changed.items()):
        write(paths, {**there, **changed})
