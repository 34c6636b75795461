"""How much of a file the kernel has in memory: of real files of a disk."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from kimi_prov.on_host.lifecycle import starts
from kimi_prov.on_host.system import page_cache

SIZE = 5 * mmap.PAGESIZE + 1


@pytest.fixture
def file() -> Path:
    """A file on a disk, which the folder of temporary files need not be; all of it was read."""
    # Beside this file: a memory file system has no page cache to leave.
    path = Path(__file__).with_suffix(".safetensors")
    path.write_bytes(bytes(SIZE))
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    yield path
    path.unlink()


def forget(path: Path) -> None:
    with path.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_a_file_that_was_read_is_there_whole(file: Path) -> None:
    assert page_cache.measure_resident(file) == (6 * mmap.PAGESIZE, SIZE)


def test_one_that_the_kernel_has_forgotten_is_not(file: Path) -> None:
    forget(file)
    assert page_cache.measure_resident(file) == (0, SIZE)


def test_an_empty_file_is_nowhere(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert page_cache.measure_resident(tmp_path / "empty") == (0, 0)


def test_where_the_weights_of_a_machine_without_a_ram_disk_are(file: Path) -> None:
    plan = {"ram_disk": {"enabled": False}, "model": {"serve_dir": str(file.parent)}}
    assert starts.find_weights_place(plan, {}) == starts.PAGE_CACHE
    forget(file)
    assert starts.find_weights_place(plan, {}) == starts.DISK
    assert (
        starts.find_weights_place({**plan, "model": {"serve_dir": "/nowhere"}}, {})
        == starts.UNKNOWN
    )
