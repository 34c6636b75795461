"""Files cut into pieces and joined again; what is damaged, missing or foreign is named."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from kimi_prov.packaging import pieces

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.documents.bundle import BundledFile

FILES = {"a/one": b"0123456789", "empty": b"", "b/two": b"abcdefghijklmnopq", "three": b"xyz"}


def describe(name: str, content: bytes) -> BundledFile:
    digest = hashlib.sha256(content).hexdigest()
    return {"path": name, "bytes": len(content), "sha256": digest}


ROWS = [describe(name, content) for name, content in FILES.items()]


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
    pieces.join(carried, ROWS)
    assert {name: (carried / name).read_bytes() for name in FILES} == FILES
    # What is there needs no piece any more.
    (carried / "p1").unlink()
    pieces.join(carried, ROWS)


def test_each_damaged_and_missing_piece_is_named_and_nothing_is_written(carried: Path) -> None:
    (carried / "p0").write_bytes(b"01234567"[::-1])
    (carried / "p2").unlink()
    with pytest.raises(pieces.DamagedError, match=r"p0 is damaged: .*; the piece p2 is missing"):
        pieces.join(carried, ROWS)
    assert not (carried / "a").exists()
    # The last file lies in the last piece alone.
    pieces.join(carried, [describe("three", b"xyz")])
    assert (carried / "three").read_bytes() == b"xyz"


def test_only_what_the_index_names_is_written(carried: Path) -> None:
    path = carried / pieces.LIST
    path.write_text(path.read_text().replace("b/two", "../two"))
    pieces.join(carried, ROWS)
    assert not (carried.parent / "two").exists()
    document = json.loads(path.read_text())
    document["pieces"][0]["name"] = "../p0"
    path.write_text(json.dumps(document))
    with pytest.raises(pieces.DamagedError, match="no list of pieces"):
        pieces.read_names(carried)


def test_a_folder_without_pieces_stays_as_it_is(tmp_path: Path) -> None:
    pieces.join(tmp_path, ROWS)
    assert list(tmp_path.iterdir()) == []
    assert pieces.read_names(tmp_path) == set()


def test_a_leftover_that_is_a_link_is_not_written_through(carried: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    (carried / "a").mkdir()
    (carried / "a" / ".one.new").symlink_to(elsewhere)
    pieces.join(carried, ROWS)
    assert elsewhere.read_bytes() == b"mine"
    assert (carried / "a" / "one").read_bytes() == FILES["a/one"]
    assert not (carried / "a" / "one").is_symlink()


@pytest.mark.parametrize("link", ["a", "a/one"])
def test_a_link_in_the_way_is_refused_by_name(carried: Path, tmp_path: Path, link: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    if link == "a":
        elsewhere.mkdir()
    else:
        (carried / "a").mkdir()
        elsewhere.write_bytes(FILES["a/one"])
    (carried / link).symlink_to(elsewhere)
    with pytest.raises(pieces.DamagedError, match=f"a/one: {link} is a link"):
        pieces.join(carried, ROWS)
    assert not elsewhere.is_dir() or list(elsewhere.iterdir()) == []
    assert not (carried / "three").exists()


def test_what_the_index_does_not_confirm_is_not_put_in_place(carried: Path) -> None:
    (carried / "three").write_bytes(b"before")
    with pytest.raises(pieces.DamagedError, match=r"three: the pieces give SHA-256 .* says"):
        pieces.join(carried, [describe("three", b"XYZ")])
    assert (carried / "three").read_bytes() == b"before"
    assert not (carried / ".three.new").exists()


def test_a_damaged_file_of_the_same_size_is_joined_again(carried: Path) -> None:
    pieces.join(carried, ROWS)
    (carried / "three").write_bytes(b"old")
    pieces.join(carried, ROWS, compare=["three"])
    assert (carried / "three").read_bytes() == b"xyz"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"bytes": 6', '"bytes": Infinity'),
        ('"start": 0', '"start": -1'),
        ('"end": 30', '"end": 31'),
        ('"start": 27', '"start": 31'),
        ('"pieces"', '"deep": ' + "[" * 100_000 + "]" * 100_000 + ', "pieces"'),
    ],
)
def test_a_list_that_cannot_be_is_refused(carried: Path, before: str, after: str) -> None:
    path = carried / pieces.LIST
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(pieces.DamagedError, match="no list of pieces"):
        pieces.join(carried, ROWS)
