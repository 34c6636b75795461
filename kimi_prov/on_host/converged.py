"""`settled`: whether files, units and weights are already converged, in one call.

Reads {"files": {PATH: SHA256}, "units": [NAME], "weights": bool, "staged": bool, "converted": bool}
from standard input. A role calls this first and does nothing more where everything is converged:
this makes a second apply quick. The subcommand keeps its old name, because `apply --check` calls
whatever version is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

from kimi_prov.contract import paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.kt import convert
from kimi_prov.on_host.system import units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.weights import fetch, stage


def main(argv: list[str]) -> int:
    """Print {"settled", "differs"}: the first thing that is not converged, or null."""
    del argv
    difference = find_difference(json.load(sys.stdin))
    return answer({"settled": difference is None, "differs": difference})


def find_difference(wanted: dict[str, Any]) -> str | None:
    """Return the first thing that is not converged."""
    for path, sha256 in wanted.get("files", {}).items():
        if not _is_file_current(path, sha256):
            return str(path)
    names = wanted.get("units", [])
    shown = units.read_states(*names) if names else {}
    for name in names:
        unit = shown.get(name, {})
        # A mount is started by the units that need it: only services are enabled.
        enabled = unit.get("enabled") or not name.endswith(".service")
        if unit.get("state") != "active" or not enabled:
            return str(name)
    return _find_unprepared(wanted)


def _find_unprepared(wanted: dict[str, Any]) -> str | None:
    """Return which weights are not fetched, in memory or converted as planned."""
    try:
        if wanted.get("weights"):
            parts = fetch.Config.load(paths.WEIGHTS).parts()
            if not all(fetch.find_verified_manifest(part) for part in parts):
                return "weights"
        if wanted.get("staged") and not stage.is_in_place(stage.Config.load(paths.STAGE)):
            return "staged weights"
        if wanted.get("converted") and not convert.read_verified(
            convert.Config.load(paths.CONVERT)
        ):
            return "converted weights"
    except HostError as error:
        return error.message
    return None


def _is_file_current(path: str, sha256: str) -> bool:
    """Return whether a file has these bytes, belongs to root, and may be read by all."""
    try:
        with open(path, "rb") as stream:
            stat = os.fstat(stream.fileno())
            same = hashlib.sha256(stream.read()).hexdigest() == sha256
    except OSError:
        return False
    return same and (stat.st_uid, stat.st_gid, stat.st_mode & 0o7777) == (0, 0, 0o644)
