"""The programs that build an image, read by shellcheck."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import command_line

if TYPE_CHECKING:
    from pathlib import Path


def image(*words: object) -> command_line.Done:
    return command_line.run("image", *words)


def made(folder: Path, *words: object) -> Path:
    """The folder of an image, which has to be written."""
    done = image(*words, "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_programs_of_the_build_pass_shellcheck(tmp_path: Path) -> None:
    program = shutil.which("shellcheck")
    assert program, "apt-get install shellcheck"
    made(tmp_path / "image", "vllm-cpu")
    for name in ("install", "kimi-pod"):
        line = [program, "--shell=sh", str(tmp_path / "image" / name)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
