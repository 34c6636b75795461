"""The machine key is made once, stays what it is, and its file is closed to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.on_host.system import machine_key

if TYPE_CHECKING:
    from pathlib import Path


def test_it_is_made_once_with_256_bits_and_no_rights_for_others(tmp_path: Path) -> None:
    file = tmp_path / "machine-key.map"
    assert machine_key.ensure(file, check=True)
    assert not file.exists()
    assert machine_key.ensure(file)
    key = machine_key.read(file)
    assert len(key) >= 43
    assert file.stat().st_mode & 0o777 == 0o640
    assert not machine_key.ensure(file)
    assert machine_key.read(file) == key


def test_a_file_that_others_may_read_is_closed_and_half_a_file_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "machine-key.map"
    machine_key.ensure(file)
    key = machine_key.read(file)
    file.chmod(0o644)
    assert machine_key.ensure(file)
    assert file.stat().st_mode & 0o777 == 0o640
    assert machine_key.read(file) == key
    file.write_text("engine ")
    assert machine_key.ensure(file)
    assert machine_key.read(file) not in ("", key)
