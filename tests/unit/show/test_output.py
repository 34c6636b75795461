"""Where a report may be written: into a regular file or a new one, and never over anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_prov.errors import UserError
from kimi_prov.show.output import Output


def link(path: Path) -> None:
    (path.parent / "kept").write_text("kept\n")
    path.symlink_to("kept")


def write(file: Path) -> None:
    output = Output("text", file)
    output.check()
    output.write({}, lambda: "report")


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
