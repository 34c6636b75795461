"""Files appear whole, with their final mode, and never where a link leads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kimi_prov.on_host.system import files

Write = Callable[[Path, str, int], None]


def atomic(path: Path, text: str, mode: int) -> None:
    files.write_atomic(path, text, mode)


def as_json(path: Path, text: str, mode: int) -> None:
    files.write_json(str(path), {"text": text}, mode=mode)


@pytest.mark.parametrize("write", [atomic, as_json])
def test_a_secret_is_nobody_elses_at_any_moment(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    replace = os.replace

    def look(source: str, target: str) -> None:
        seen.append(Path(source).stat().st_mode & 0o777)
        replace(source, target)

    opened = os.open

    def note(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        descriptor = opened(path, flags, mode, **more)
        if flags & os.O_CREAT:
            seen.append(os.fstat(descriptor).st_mode & 0o777)
        return descriptor

    monkeypatch.setattr(os, "open", note)
    monkeypatch.setattr(os, "replace", look)
    former = os.umask(0)
    try:
        write(tmp_path / "key", "secret", 0o640)
    finally:
        os.umask(former)
    assert seen == [0o600, 0o640]
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("write", [atomic, as_json])
def test_a_link_where_it_is_written_first_leads_nowhere(tmp_path: Path, write: Write) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.write_text("kept")
    names = (f".key.{os.getpid()}", f".key.{os.getpid()}.tmp", f"key.{os.getpid()}.tmp")
    for name in names:
        (folder / name).symlink_to(other)
    write(folder / "key", "secret", 0o600)
    assert other.read_text() == "kept"
    assert "secret" in (folder / "key").read_text()


def test_what_cannot_be_written_leaves_the_old_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    files.write_json(str(path), {"n": 1})
    with pytest.raises(TypeError):
        files.write_json(str(path), {"n": object()})
    assert json.loads(path.read_text()) == {"n": 1}
    assert list(tmp_path.iterdir()) == [path]
