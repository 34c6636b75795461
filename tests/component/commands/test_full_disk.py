"""A disk that is full in the middle of a file: what a command writes is whole or not there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import forked
import pytest

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def limited(home: Path, size: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that may write no file of more than `size` bytes."""
    return forked.run(
        *words,
        cwd=home,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        prepare=forked.limit_files,
        prepared={"size": size},
    )


@pytest.mark.parametrize(
    ("size", "words", "made"),
    [
        (1024, ["init", "--spec", "quote.yml"], "quote.yml"),
        (1024, ["init", "mine", "--profile", "localhost"], "mine"),
        (20480, ["probe", "--bundle", "probe.pyz"], "probe.pyz"),
    ],
)
def test_nothing_is_left_and_one_line_says_why(
    tmp_path: Path, size: int, words: list[str], made: str
) -> None:
    done = limited(tmp_path, size, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    error, fix = done.stderr.splitlines()
    assert error == f"error: {made}: cannot be written: File too large"
    assert fix.startswith("  fix: ")
    assert list(tmp_path.iterdir()) == []
    assert limited(tmp_path, 1 << 30, *words).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == [made]


def test_an_empty_folder_is_filled_or_stays_empty(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    words = ("init", ".", "--profile", "localhost")
    assert limited(mine, 1024, *words).returncode == 2
    assert list(mine.iterdir()) == []
    node = mine.stat().st_ino
    assert limited(mine, 1 << 30, *words).returncode == 0
    assert (mine / "group_vars" / "kimi.yml").is_file()
    # A shell may stand in it.
    assert mine.stat().st_ino == node


def test_a_bundle_that_was_there_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "probe.pyz").write_bytes(b"mine")
    assert limited(tmp_path, 20480, "probe", "--bundle", "probe.pyz").returncode == 2
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


@pytest.mark.parametrize("more", [["--output", "facts.json"], ["--measure"]])
def test_a_bundle_takes_no_option_of_the_probe(tmp_path: Path, more: list[str]) -> None:
    done = limited(tmp_path, 1 << 30, "probe", "--bundle", "probe.pyz", *more)
    assert done.returncode == 2
    assert "--bundle" in done.stderr
    assert more[0] in done.stderr
    assert list(tmp_path.iterdir()) == []
