"""The wheel that a machine gets: made in a checkout and in an installation it holds the same."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

from kimi_prov.packaging import lock_files, own_wheel

if TYPE_CHECKING:
    from pathlib import Path

PRINTS = """
import sys
from kimi_prov.packaging import own_wheel
made = own_wheel.make_wheel()
sys.stdout.buffer.write(made.name.encode() + b"\\n" + made.content)
"""


def names(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def of_installed(site: Path, home: Path) -> tuple[str, bytes]:
    """Make the wheel where another was installed, as a process that has no checkout."""
    home.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", PRINTS], check=True, capture_output=True, cwd=home, env=environment
    )
    name, _, content = done.stdout.partition(b"\n")
    return name.decode(), content


def test_an_installation_gives_the_wheel_that_it_came_from(tmp_path: Path) -> None:
    made = own_wheel.make_wheel()
    with zipfile.ZipFile(io.BytesIO(made.content)) as archive:
        archive.extractall(tmp_path / "site")
    name, content = of_installed(tmp_path / "site", tmp_path / "home")
    before, after = names(made.content), names(content)
    # The manual page is for people.
    left_out = {path for path in before if ".data/" in path}
    record = "kimi_prov-0.1.0.dist-info/RECORD"
    assert name == made.name
    assert set(after) == set(before) - left_out
    assert {path for path in after if after[path] != before[path]} <= {record}
    assert of_installed(tmp_path / "site", tmp_path / "again") == (name, content)


def test_the_lock_in_it_pins_all_that_it_requires() -> None:
    lock = names(own_wheel.make_wheel().content)[own_wheel.LOCK].decode()
    pins = {pin.name: pin for pin in lock_files.read_pins(lock)}
    assert all(pin.sha256 for pin in pins.values())
    for text in own_wheel.metadata.requires(own_wheel.DISTRIBUTION) or ():
        name = lock_files.normalize_name(text.partition(">")[0].partition("<")[0].partition("=")[0])
        assert name in pins, text
