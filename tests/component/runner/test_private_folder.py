"""Folders of runs: of the living they stay, whatever the process ids say, of the dead they go."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kimi_prov.runner.private_folder import make_private_folder

HOLD = """
import sys
from kimi_prov.runner.private_folder import make_private_folder
with make_private_folder("one") as folder:
    print(folder.folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A directory for folders of runs, short enough for sockets in them."""
    with tempfile.TemporaryDirectory(prefix="k-") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        monkeypatch.setenv("TMPDIR", short)
        yield short


@pytest.fixture
def other(temporary):
    """A run in a process of its own, and its folder under a process id that nobody has here."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = Path(process.stdout.readline().strip())
    elsewhere = folder.rename(Path(temporary) / f"kimi-{2**22 + 1}-abcdefgh")
    yield process, elsewhere
    process.kill()
    process.communicate()


def test_a_run_in_another_pid_namespace_keeps_its_folder(other):
    process, folder = other
    with make_private_folder("two"):
        assert [path.name for path in folder.iterdir()] == ["run"]
    assert process.poll() is None


def test_the_folder_of_a_killed_run_is_removed_by_the_next(other):
    process, folder = other
    process.kill()
    process.wait()
    with make_private_folder("two") as mine:
        assert not folder.exists()
        assert mine.folder.is_dir()
    assert not mine.folder.exists()


def test_the_folder_of_an_older_version_that_holds_no_lock_stays_while_it_lives(temporary):
    process = subprocess.Popen(["sleep", "60"])
    folder = Path(temporary) / f"kimi-{process.pid}-abcdefgh"
    folder.mkdir()
    (folder / "run").write_text("three")
    try:
        with make_private_folder("two"):
            assert folder.exists()
    finally:
        process.kill()
        process.wait()
    with make_private_folder("two"):
        assert not folder.exists()
