"""The trial of Pythons and ansible-cores: which pairs there are, and which could not be tried."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RUN = ROOT / "tests" / "matrix" / "run.py"
FOREIGN = [f"3.{n}" for n in range(11, 15) if n != sys.version_info[1]]


@pytest.fixture
def matrix(tmp_path):
    """Run it where there is no Python but those that the test puts there."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "uv").symlink_to(Path(sys.executable).with_name("uv"))

    def run(*words):
        return subprocess.run(
            [sys.executable, str(RUN), *map(str, words)],
            check=False,
            capture_output=True,
            text=True,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith(("UV_", "VIRTUAL_"))},
                "PATH": str(programs),
                "PYENV_ROOT": str(tmp_path / "pyenv"),
                "UV_PYTHON_INSTALL_DIR": str(tmp_path / "managed"),
            },
            timeout=120,
        )

    return run


def pairs(output):
    lines = [line.split(":")[0] for line in output.splitlines()]
    return {tuple(word.split()[1] for word in line.split(", ")) for line in lines}


def test_each_pair_that_cannot_be_tried_is_named(matrix):
    done = matrix("--pairs", *[f"{python}/2.{n}" for python in FOREIGN for n in (19, 20, 21)])
    assert done.returncode == 1, "nothing was tried"
    assert {line.partition(": ")[2] for line in done.stdout.splitlines()} == {
        "not tried: no such Python on this machine"
    }
    newer = {(python, f"2.{n}") for python in FOREIGN for n in (20, 21) if python != "3.11"}
    assert pairs(done.stdout) == newer | {(python, "2.19") for python in FOREIGN}


def test_a_stub_that_leads_nowhere_is_no_python(matrix, tmp_path):
    stub = tmp_path / "pyenv" / "versions" / f"{FOREIGN[0]}.1" / "bin" / "python"
    stub.parent.mkdir(parents=True)
    stub.write_text("#!/bin/sh\necho pyenv: not found >&2\nexit 127\n")
    stub.chmod(0o755)
    done = matrix("--pairs", f"{FOREIGN[0]}/2.19")
    assert "not tried" in done.stdout


def test_what_fails_is_told_with_its_output(matrix, tmp_path):
    """A Python that answers for its version, and is none."""
    odd = tmp_path / "odd"
    odd.write_text(f"#!/bin/sh\necho {FOREIGN[0]}\n")
    odd.chmod(0o755)
    done = matrix("--python", odd, "--pairs", f"{FOREIGN[0]}/2.19")
    assert done.returncode == 1
    assert f"Python {FOREIGN[0]}, ansible-core 2.19: FAILED ({odd}, " in done.stdout
    assert "uv venv" in done.stderr
