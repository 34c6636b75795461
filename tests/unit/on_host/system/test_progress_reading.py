"""A progress file is read by root and may be another user's: it is data, or nothing."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from kimi_prov.on_host.system.follow import read_progress

if TYPE_CHECKING:
    from pathlib import Path

SECRET = json.dumps({"line": "a key", "state": "running"})


def link(path: Path) -> None:
    path.with_name("key").write_text(SECRET)
    path.symlink_to("key")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def deep(path: Path) -> None:
    path.write_text('{"line": ' + "[" * 200_000)


@pytest.mark.parametrize("put", [link, loop, os.mkfifo, os.mkdir, deep])
def test_what_stands_in_its_place_is_no_progress(put, tmp_path: Path) -> None:
    path = tmp_path / "convert.json"
    put(path)
    assert read_progress(str(path), "1") is None


def test_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "convert.json").write_text(SECRET)
    assert read_progress(str(tmp_path / "convert.json"), "1") == json.loads(SECRET)
