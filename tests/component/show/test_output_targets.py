"""What is no plain file, a socket among them, is never written over."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from kimi_prov.cli import cli
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.show.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    (path.parent / "kept").write_text("kept\n")
    path.symlink_to("kept")


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def folder(path: Path) -> None:
    path.mkdir()


ODD = pytest.mark.parametrize("make", [fifo, link, dangling, listening, folder])


def write(file: Path) -> None:
    output = Output("text", file)
    output.check()
    output.write({}, lambda: "report")


def bundle(file: Path) -> None:
    cli.main(["probe", "--bundle", str(file)], standalone_mode=False)


@pytest.mark.parametrize(("option", "into"), [("--output", write), ("--bundle", bundle)])
@ODD
def test_what_is_no_plain_file_is_refused_and_stays(
    tmp_path: Path, make: Callable[[Path], None], option: str, into: Callable[[Path], None]
) -> None:
    path = tmp_path / "report"
    make(path)
    before = path.lstat()
    with pytest.raises(UserError, match=f"{option} .*report: ") as error:
        into(path)
    assert error.value.exit_code is ExitCode.BAD_INPUT
    after = path.lstat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (
        before.st_ino,
        before.st_mode,
        before.st_mtime_ns,
    )
    kept = sorted(p.name for p in tmp_path.iterdir())
    assert kept in (["report"], ["kept", "report"])
    assert all(p.read_text() == "kept\n" for p in tmp_path.glob("kept"))
