"""What waits for a restart, asked of real processes and of programs in apt's place."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.update import waiting


def test_a_library_that_was_replaced_is_seen_in_the_process_that_runs_it(tmp_path: Path) -> None:
    name = ctypes.util.find_library("z")
    assert name
    source = next(Path("/lib").rglob(name), None) or next(Path("/usr/lib").rglob(name))
    library = tmp_path / "libthis.so.1"
    shutil.copy(source, library)
    program = f"import ctypes; ctypes.CDLL({str(library)!r}); print('on', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert not waiting.is_running_replaced(str(process.pid))
        library.unlink()
        assert waiting.is_running_replaced(str(process.pid))
        process.communicate(b"\n")
    assert not waiting.is_running_replaced(str(process.pid))


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Put programs before all others, by name."""
    for name, script in scripts.items():
        file = folder / name.replace("_", "-")
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_an_apt_that_hangs_is_told_and_its_process_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = f"echo $$ >> {tmp_path}/pids; exec sleep 3600"
    programs(tmp_path, monkeypatch, apt_mark="exit 0", apt_get=hangs)
    with pytest.raises(HostError, match=r"^apt did not answer in 2 s$"):
        waiting.collect(patience_s=2)
    pids = (tmp_path / "pids").read_text().split()
    assert pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_an_apt_that_fails_is_no_machine_without_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = "echo 'E: The list of sources could not be read.' >&2; exit 100"
    programs(tmp_path, monkeypatch, apt_mark="exit 0", apt_get=fails)
    with pytest.raises(HostError, match=r"The list of sources could not be read"):
        waiting.collect()
    programs(tmp_path, monkeypatch, apt_mark="echo 'E: no' >&2; exit 100")
    with pytest.raises(HostError, match=r"^no$"):
        waiting.collect()
