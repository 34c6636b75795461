"""Where a report may be written: into a regular file or a new one, and never over anything else."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kimi_prov.commands import probe
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.show.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable


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
    probe.run(Output("json"), file, measure=False)


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


def test_what_became_a_link_while_the_work_was_done_is_refused(tmp_path: Path) -> None:
    output = Output("text", tmp_path / "report")
    output.check()
    link(tmp_path / "report")
    with pytest.raises(UserError, match="symbolic link"):
        output.write({}, lambda: "report")
    assert (tmp_path / "kept").read_text() == "kept\n"


def test_who_names_a_device_is_told_how_to_have_standard_output() -> None:
    with pytest.raises(UserError) as error:
        Output("text", Path("/dev/null")).check()
    assert error.value.fix == "leave out --output: the report goes to standard output"


def test_a_new_file_and_an_old_one_are_written_whole(tmp_path: Path) -> None:
    write(tmp_path / "report")
    write(tmp_path / "report")
    assert (tmp_path / "report").read_text() == "report\n"
    assert [p.name for p in tmp_path.iterdir()] == ["report"]


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file can be written there"):
        write(tmp_path / ("x" * 300))
