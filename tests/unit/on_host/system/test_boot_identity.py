"""A start of a machine has one name, whichever unit asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.on_host.system.boot import read_boot_id
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from pathlib import Path


def started(root: Path, boot_id: str, ticks: int, container: str = "") -> str:
    files = {
        "proc/sys/kernel/random/boot_id": f"{boot_id}\n",
        "proc/1/stat": f"1 (systemd (x)) {' '.join(['0'] * 19)} {ticks} 0\n",
        **({"run/systemd/container": container} if container else {}),
    }
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return read_boot_id(Machine(str(root)))


def test_a_machine_has_another_name_after_each_boot(tmp_path: Path) -> None:
    # Its first process begins at the same time of each boot.
    assert started(tmp_path, "one", 3) != started(tmp_path, "two", 3)


def test_a_container_has_one_name_whoever_made_its_proc(tmp_path: Path) -> None:
    """systemd-nspawn makes up an id, which a unit with a /proc of its own does not see."""
    within = started(tmp_path, "made-up", 2_295_653, "systemd-nspawn")
    assert started(tmp_path, "the-hosts-own", 2_295_653, "systemd-nspawn") == within
    assert started(tmp_path, "the-hosts-own", 2_299_999, "systemd-nspawn") != within
