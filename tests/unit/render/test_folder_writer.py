"""A rendered folder is written whole, and what somebody changed in it stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import closed_form
import pytest

from kimi_prov.errors import UserError
from kimi_prov.render import folder_writer
from kimi_prov.render.folder_writer import File, RenderedFolder


def rendered(**files: str) -> RenderedFolder:
    rows = [File(name.replace("__", "/"), text.encode()) for name, text in files.items()]
    return RenderedFolder("slurm", "n1", "0" * 64, [*rows, File("run.sh", b"#!/bin/sh\n", 0o755)])


def read(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_folder_is_made_with_its_record(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = folder_writer.write_folder(folder, rendered(a="1\n", jobs__b="2\n"))
    assert done.written == ["a", "jobs/b", "run.sh"]
    record = json.loads((folder / "render.json").read_text())
    closed_form.validate(record, "render")
    assert [(row["path"], row["mode"]) for row in record["files"]] == [
        ("a", "0644"),
        ("jobs/b", "0644"),
        ("run.sh", "0755"),
    ]
    assert (folder / "run.sh").stat().st_mode & 0o111
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_in_which_a_shell_stands_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    same = tmp_path.stat().st_ino
    folder_writer.write_folder(Path(), rendered(a="1\n", jobs__b="2\n"))
    assert sorted(read(tmp_path)) == ["a", "jobs/b", "render.json", "run.sh"]
    assert Path().stat().st_ino == same
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a",
        "jobs",
        "render.json",
        "run.sh",
    ]


def test_a_plan_of_another_version_is_read_where_what_is_read_is_there(tmp_path: Path) -> None:
    plan: dict[str, Any] = {
        "model": {"name": "k", "served_names": ["k"], "context": 9, "random_weights": False},
        "engine": {"name": "another", "variant": "cpu", "version": "9"},
        "proxy": {"port": 8000, "allowed_networks": []},
        "instances": [{"argv": ["serve"]}],
        "group": None,
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert folder_writer.read_plan(tmp_path) == plan
    for name, wrong in (
        ("model", {**plan["model"], "served_names": []}),
        ("proxy", {"port": "8000", "allowed_networks": []}),
        ("group", {"rank": 1}),
        ("throughput", 3),
    ):
        (tmp_path / "plan.json").write_text(json.dumps({**plan, name: wrong}))
        with pytest.raises(UserError, match=f"this is no plan: {name}") as refused:
            folder_writer.read_plan(tmp_path)
        assert refused.value.fix == "render the folder again"


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    folder_writer.write_folder(tmp_path / "out", rendered(a="1\n"))
    before = read(tmp_path / "out")
    done = folder_writer.write_folder(tmp_path / "out", rendered(a="1\n"))
    assert (done.written, done.unchanged) == ([], ["a", "run.sh"])
    assert read(tmp_path / "out") == before


def test_what_was_changed_by_hand_stays_until_forced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder_writer.write_folder(folder, rendered(a="1\n", b="1\n", gone="1\n", left="1\n"))
    for name in ("a", "left"):
        (folder / name).write_text("mine\n")
    for _ in range(2):  # the record still tells what was rendered
        done = folder_writer.write_folder(folder, rendered(a="2\n", b="2\n"))
        assert "a" in done.kept
        assert (folder / "a").read_text() == "mine\n"
    assert (folder / "b").read_text() == "2\n"
    assert not (folder / "gone").exists()
    assert (folder / "left").read_text() == "mine\n"
    done = folder_writer.write_folder(folder, rendered(a="2\n", b="2\n"), force=True)
    assert (done.written, done.kept) == (["a"], [])


def test_a_file_of_somebody_elses_in_the_place_of_a_new_one_stays(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder_writer.write_folder(folder, rendered(a="1\n"))
    (folder / "notes").write_text("mine\n")
    assert folder_writer.write_folder(folder, rendered(a="1\n", notes="2\n")).kept == ["notes"]
    assert (folder / "notes").read_text() == "mine\n"


def test_a_folder_that_no_render_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UserError, match="no render made this folder, and it has files: mine"):
        folder_writer.write_folder(tmp_path, rendered(a="1\n"))
    assert read(tmp_path) == {"mine": "x"}
    (tmp_path / "render.json").write_text('{"schema": "other"}')
    with pytest.raises(UserError, match="no record of a render"):
        folder_writer.write_folder(tmp_path, rendered(a="1\n"))
    with pytest.raises(UserError, match="no such folder"):
        folder_writer.check_folder(tmp_path / "absent" / "out", "slurm")


def test_a_record_of_another_kind_or_that_leads_out_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder_writer.write_folder(folder, rendered(a="1\n"))
    with pytest.raises(UserError, match="rendered for slurm, not for pod"):
        folder_writer.check_folder(folder, "pod")
    record = json.loads((folder / "render.json").read_text())
    record["files"].append({"path": "../victim", "sha256": "0" * 64, "mode": "0644"})
    (folder / "render.json").write_text(json.dumps(record))
    (tmp_path / "victim").write_text("x")
    with pytest.raises(UserError, match="no path in the folder"):
        folder_writer.write_folder(folder, rendered(a="1\n"), force=True)
    assert (tmp_path / "victim").read_text() == "x"


def test_no_link_is_written_through(tmp_path: Path) -> None:
    folder, other = tmp_path / "out", tmp_path / "other"
    folder_writer.write_folder(folder, rendered(jobs__a="1\n"))
    (folder / "jobs").rename(other)
    (folder / "jobs").symlink_to(other)
    with pytest.raises(UserError, match="this is a link"):
        folder_writer.write_folder(folder, rendered(jobs__a="2\n"), force=True)
    assert (other / "a").read_text() == "1\n"


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    class Broken(RenderedFolder):
        def document(self) -> dict[str, object]:
            raise OSError(28, "No space left on device")

    made = rendered(a="1\n")
    with pytest.raises(UserError, match="No space left"):
        folder_writer.write_folder(
            tmp_path / "out", Broken(made.kind, made.target, made.plan_digest, made.files)
        )
    assert list(tmp_path.iterdir()) == []
