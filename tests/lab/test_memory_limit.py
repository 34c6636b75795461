"""A checkpoint is loaded under the planned memory limit, and a process that exceeds it ends alone.

The kernel's own memory groups, without systemd: the lab hosts of a computer that gives this
controller to its older hierarchy have none of it. The load's cost is counted in bytes that were
read from the disk, because a page that the limit threw away is read twice; seconds are told.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import HANGS_S

from kimi_prov.planner.memory.unit_limit import Use, choose_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MIB = 1 << 20
CHECKPOINT, FILES = 384 * MIB, 4
# As an engine: it maps each file and copies it. What it says last is what it read from the disk.
LOAD = """
import mmap, sys
kept = []
for name in sys.argv[1:]:
    with open(name, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        kept.append(bytearray(mapped))
rows = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
print(sum(map(len, kept)), rows["read_bytes"], flush=True)
"""
RUNAWAY = "kept = []\nwhile True: kept.append(bytearray(8 << 20))"


class Group:
    """A memory group of the kernel with a limit, as systemd makes one for a unit."""

    def __init__(self, mount: Path, limit: int) -> None:
        self._mount = mount
        older = _mount("cgroup", "memory", mount)
        if not older:
            assert _mount("cgroup2", "rw", mount)
            (mount / "cgroup.subtree_control").write_text("+memory")
        self._folder = mount / f"kimi-limit-{uuid.uuid4().hex}"
        self._folder.mkdir()
        name = "memory.limit_in_bytes" if older else "memory.max"
        (self._folder / name).write_text(str(limit))
        self._events = self._folder / ("memory.oom_control" if older else "memory.events")

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of Python in the group."""
        enter = f'echo $$ > {self._folder}/cgroup.procs; exec "$@"'
        words = ["sh", "-c", enter, "sh", sys.executable, "-I", "-c", program, *arguments]
        return subprocess.run(
            words, check=False, capture_output=True, text=True, timeout=4 * HANGS_S
        )

    @property
    def kills(self) -> int:
        rows = dict(line.split() for line in self._events.read_text().splitlines())
        return int(rows["oom_kill"])

    def remove(self) -> None:
        self._folder.rmdir()
        subprocess.run(["umount", str(self._mount)], check=True)


def _mount(kind: str, options: str, place: Path) -> bool:
    """Mount the hierarchy of memory groups, which is the computer's own: whoever asks sees it."""
    line = ["mount", "-t", kind, "-o", options, "none", str(place)]
    return subprocess.run(line, check=False, capture_output=True).returncode == 0


@pytest.fixture
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """The group of the only engine of a host that hardly holds it: no lower limit is planned."""
    resident, reserve = CHECKPOINT + 64 * MIB, 256 * MIB
    memory, limit = reserve + resident, None
    while limit is None:
        memory += 16 * MIB
        limit = choose_limit(Use(memory, reserve, 0, resident, 1))
    # The checkpoint's files and its copy do not both fit.
    assert limit < 2 * CHECKPOINT
    group = Group(tmp_path_factory.mktemp("groups"), limit)
    yield group
    group.remove()


def make_checkpoint(folder: Path) -> list[str]:
    """Files without a page in memory, where they are on a disk."""
    names = [folder / f"model-{number}.safetensors" for number in range(FILES)]
    for name in names:
        with name.open("wb") as file:
            for _ in range(CHECKPOINT // FILES // MIB):
                file.write(os.urandom(MIB))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return [str(name) for name in names]


def test_a_checkpoint_of_the_page_cache_is_loaded_whole_and_read_once(
    limited: Group, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    names = make_checkpoint(tmp_path)
    began = time.monotonic()
    done = limited.run(LOAD, *names)
    took = time.monotonic() - began
    names = make_checkpoint(tmp_path)
    began = time.monotonic()
    subprocess.run([sys.executable, "-I", "-c", LOAD, *names], check=True, capture_output=True)
    without = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    loaded, read = map(int, done.stdout.split())
    assert loaded == CHECKPOINT
    assert read < 1.1 * CHECKPOINT
    assert limited.kills == 0
    record_property("MiB loaded and read", (loaded // MIB, read // MIB))
    record_property("seconds with and without the limit", (round(took, 1), round(without, 1)))


def test_a_checkpoint_of_the_ram_disk_takes_no_room_of_the_limit(limited: Group) -> None:
    folder = Path(f"/dev/shm/kimi-limit-{os.getpid()}")
    folder.mkdir()
    try:
        # Its pages are charged to who fills it, as kimi-stage does.
        done = limited.run(LOAD, *make_checkpoint(folder))
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) == CHECKPOINT
    assert limited.kills == 0


def test_who_exceeds_the_limit_ends_and_nobody_else(limited: Group) -> None:
    beside = subprocess.Popen(
        [sys.executable, "-c", f"kept = bytearray({512 * MIB}); input()"], stdin=subprocess.PIPE
    )
    try:
        done = limited.run(RUNAWAY)
        assert done.returncode in (-9, 137)
        assert limited.kills == 1
        assert beside.poll() is None
    finally:
        beside.communicate(b"\n", timeout=HANGS_S)
    assert beside.returncode == 0
