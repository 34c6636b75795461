"""Files cut into pieces and joined again; what is damaged, missing or foreign is named."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from kimi_prov.packaging import pieces

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"a/one": b"0123456789", "empty": b"", "b/two": b"abcdefghijklmnopq", "three": b"xyz"}
SIZES = {name: len(content) for name, content in FILES.items()}


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    """A folder with the pieces alone."""
    source, into = tmp_path / "source", tmp_path / "carried"
    for name, content in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    rows = [(name, source / name) for name in FILES]
    result = pieces.cut(rows, 8, lambda number: into / f"p{number}")
    assert [row["bytes"] for row in result.pieces] == [8, 8, 8, 6]
    for row in result.pieces:
        assert hashlib.sha256((into / row["name"]).read_bytes()).hexdigest() == row["sha256"]
    (into / pieces.LIST).write_text(pieces.format_list(result))
    return into


def test_what_was_cut_is_joined_once(carried: Path) -> None:
    names = pieces.read_names(carried)
    assert names == {pieces.LIST, "p0", "p1", "p2", "p3"}
    pieces.join(carried, SIZES)
    assert {name: (carried / name).read_bytes() for name in FILES} == FILES
    # What is there needs no piece any more.
    (carried / "p1").unlink()
    pieces.join(carried, SIZES)


def test_each_damaged_and_missing_piece_is_named_and_nothing_is_written(carried: Path) -> None:
    (carried / "p0").write_bytes(b"01234567"[::-1])
    (carried / "p2").unlink()
    with pytest.raises(pieces.DamagedError, match=r"p0 is damaged: .*; the piece p2 is missing"):
        pieces.join(carried, SIZES)
    assert not (carried / "a").exists()
    # The last file lies in the last piece alone.
    pieces.join(carried, {"three": 3})
    assert (carried / "three").read_bytes() == b"xyz"


def test_only_what_the_index_names_is_written(carried: Path) -> None:
    path = carried / pieces.LIST
    path.write_text(path.read_text().replace("b/two", "../two"))
    pieces.join(carried, SIZES)
    assert not (carried.parent / "two").exists()
    document = json.loads(path.read_text())
    document["pieces"][0]["name"] = "../p0"
    path.write_text(json.dumps(document))
    with pytest.raises(pieces.DamagedError, match="no list of pieces"):
        pieces.read_names(carried)


def test_a_folder_without_pieces_stays_as_it_is(tmp_path: Path) -> None:
    pieces.join(tmp_path, SIZES)
    assert list(tmp_path.iterdir()) == []
    assert pieces.read_names(tmp_path) == set()
