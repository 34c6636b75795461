"""Measuring: within its bounds, without a trace, and honest about what could not be measured."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import closed_form
import pytest

from kimi_prov.commands import probe as commands
from kimi_prov.on_host.probe import collect, measure
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from pathlib import Path

LIVE = Machine()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Shorter bounds and less memory; a temporary folder of our own, to see what stays."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    for name, value in {
        "_READING_S": 0.1,
        "_DISK_S": 0.3,
        "_HASHING_S": 0.1,
        "_MIN_BYTES": 32 << 20,
        "_CACHES": 0,
        "_LOOKING_S": 0.3,
    }.items():
        monkeypatch.setattr(measure, name, value)
    return scratch


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
def test_all_is_measured_and_nothing_stays(short: Path) -> None:
    document = commands.describe_machine(measure=True)
    closed_form.validate(document, "facts")
    found = document["measured"]
    assert found["memory"]["reason"] is None
    # Bytes, not another unit: far below and above what a machine does, however busy.
    assert 1e6 < found["memory"]["bytes_per_s"] < 1e15
    assert found["memory"]["nodes"][0]["bytes_per_s"]
    assert 1e5 < found["sha256"]["bytes_per_s"] < 1e13
    assert list(short.iterdir()) == []


def test_without_a_compiler_memory_is_unknown(short: Path) -> None:
    class Bare(Machine):
        def which(self, command: str) -> str | None:
            return None

    found = measure.measure_memory(Bare(), collect.collect(LIVE))
    assert found["bytes_per_s"] is None
    assert "compiler" in found["reason"]
    assert list(short.iterdir()) == []


def test_a_compiler_that_fails_is_no_failure(tmp_path: Path, short: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)

    class Broken(Machine):
        def which(self, command: str) -> str | None:
            return str(compiler)

    found = measure.measure_memory(Broken(), collect.collect(LIVE))
    assert found["bytes_per_s"] is None
    assert "could not compile" in found["reason"]
    assert list(short.iterdir()) == []


def test_a_program_is_run_where_its_folder_lets_none_run(tmp_path: Path) -> None:
    """As in a /tmp that is mounted noexec: here by what the compiler makes of its rights."""
    compiler = tmp_path / "cc"
    compiler.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "out = sys.argv[sys.argv.index('-o') + 1]\n"
        "open(out, 'w').write('#!/bin/sh\\necho 5000000000\\n')\n"
    )
    compiler.chmod(0o755)

    class Noexec(Machine):
        def which(self, command: str) -> str | None:
            return str(compiler)

    assert measure.measure_memory(Noexec(), collect.collect(LIVE))["bytes_per_s"] == 5_000_000_000


def test_a_program_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "read"
    # Were it waited for, it would give a figure.
    program.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\nprint(1)\n")
    program.chmod(0o755)
    monkeypatch.setattr(measure, "_PER_RUN_S", 0.2)
    assert measure._run(str(program), [0], 1 << 20) is None


def test_a_file_is_read_once_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(1 << 20) * 72)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    found = measure._read(str(path))
    assert 0 < found["bytes"] <= 72 << 20
    assert found["bytes"] % measure._BLOCK == 0
    assert found["bytes_per_s"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def test_a_disk_that_cannot_be_read_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_BIG_FILES", ("/nonexistent",))
    document: dict[str, Any] = {"filesystems": []}
    found = measure.measure_disk(document)
    assert found["bytes_per_s"] is None
    assert "64 MiB" in found["reason"]


@pytest.mark.parametrize(("busy", "seen"), [(False, 7), (True, None)])
def test_only_a_quiet_machine_outranks_the_catalogue(busy: bool, seen: int | None) -> None:
    document = collect.collect(LIVE)
    found = {"busy": busy, "memory": {"bytes_per_s": 7}, "disk": {"bytes_per_s": None}}
    measure.apply(document, found)
    assert document["memory"]["bandwidth_bytes_per_s"]["measured"] == seen
    assert document["measured"] == found
