"""The file that the operator's key is written to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kimi_prov.ansible.control_files import append_line
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def test_it_is_its_owners_alone_also_where_it_was_open_before(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.touch()
    path.chmod(0o644)
    for host in ("one", "two"):
        append_line(path, {"host": host, "key": "sk-kimi-x"})
    assert path.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line)["host"] for line in path.read_text().splitlines()] == ["one", "two"]


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "key"
    other.write_text("")
    path.symlink_to(other)
    with pytest.raises(UserError, match="symbolic"):
        append_line(path, {"host": "one", "key": "sk-kimi-x"})
    assert other.read_text() == ""
