"""The drop-ins by which an engine runs a candidate: in /run, so that a boot forgets them.

What apply wrote stays untouched: without these files the engine starts as it was applied.

Decides: how a tune puts a candidate in place, and takes it away.
Held by: tests/unit/on_host/tune/test_tune_overlay.py, tests/lab/test_tune.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.files import make_directory, write_atomic
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from collections.abc import Mapping

UNITS = Path("/run/systemd/system")
# After 10-plan.conf of /etc: systemd reads drop-ins of all folders by their names.
NAME = "90-tune.conf"


def put(drop_ins: Mapping[str, str], units: Path = UNITS) -> None:
    """Put the drop-ins of a candidate in place, by unit. Raises HostError for another's unit."""
    for unit in drop_ins:
        if not unit.startswith(unit_names.SERVE_PREFIX) or not unit_names.is_ours(unit):
            raise HostError(f"{unit} is no unit of an engine", "run kimi-prov tune again")
    remove(units)
    for unit, text in drop_ins.items():
        folder = units / f"{unit}.d"
        make_directory(folder, 0o755)
        write_atomic(folder / NAME, text, 0o644)
    run("systemctl", "daemon-reload")


def remove(units: Path = UNITS) -> bool:
    """Remove the drop-ins of a candidate; return whether there was one."""
    files = sorted(units.glob(f"{unit_names.SERVE_PREFIX}*.service.d/{NAME}"))
    for file in files:
        file.unlink()
        if not any(file.parent.iterdir()):
            file.parent.rmdir()
    if files:
        run("systemctl", "daemon-reload")
    return bool(files)
