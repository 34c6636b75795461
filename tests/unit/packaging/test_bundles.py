"""An offline bundle's files against its index: what is damaged, missing or foreign is named."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.errors import UserError
from kimi_prov.packaging import bundles, pieces

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def index(tmp_path: Path) -> dict[str, Any]:
    """The index of a folder with two wheels."""
    rows = []
    for name in ("wheels/a.whl", "wheels/b.whl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode())
        digest = hashlib.sha256(name.encode()).hexdigest()
        rows.append({"path": name, "bytes": len(name), "sha256": digest})
    (tmp_path / "apt").mkdir()
    for name in (bundles.INDEX, bundles.SIGNATURE, bundles.KEY, "apt/debian-12-x86_64.sig"):
        (tmp_path / name).write_bytes(b"x")
    return {"files": rows, "archives": [{"signature": "apt/debian-12-x86_64.sig"}]}


PATHS = ["wheels/a.whl", "wheels/b.whl"]


def test_whole_files_are_without_fault(tmp_path: Path, index: Any) -> None:
    assert bundles.find_faults(tmp_path, index, PATHS) == []


def test_what_an_unfinished_run_left_is_not_foreign(tmp_path: Path, index: Any) -> None:
    (tmp_path / bundles.PARTIAL).mkdir()
    (tmp_path / bundles.PARTIAL / "x").write_bytes(b"")
    assert bundles.find_faults(tmp_path, index, PATHS) == []


def test_each_fault_names_its_file(tmp_path: Path, index: Any) -> None:
    (tmp_path / "wheels/a.whl").write_bytes(b"wheels/A.whl")
    (tmp_path / "wheels/b.whl").unlink()
    (tmp_path / "wheels/c.whl").write_bytes(b"")
    foreign, damaged, missing = bundles.find_faults(tmp_path, index, PATHS)
    assert foreign == "wheels/c.whl: the index does not name it"
    assert damaged.startswith("wheels/a.whl: damaged: SHA-256 ")
    assert missing == "wheels/b.whl: missing"


def test_a_cut_file_is_damaged(tmp_path: Path, index: Any) -> None:
    (tmp_path / "wheels/a.whl").write_bytes(b"wheels")
    assert bundles.find_faults(tmp_path, index, PATHS) == [
        "wheels/a.whl: damaged: 6 bytes, the index says 12"
    ]


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path, index: Any) -> None:
    (tmp_path / "wheels/a.whl").rename(tmp_path / "elsewhere")
    (tmp_path / "wheels/a.whl").symlink_to(tmp_path / "elsewhere")
    assert "wheels/a.whl: missing" in bundles.find_faults(tmp_path, index, PATHS)


def test_every_link_is_named_and_a_folder_that_is_one_hides_nothing(
    tmp_path: Path, index: Any
) -> None:
    (tmp_path / "wheels").rename(tmp_path.parent / "elsewhere")
    (tmp_path / "wheels").symlink_to(tmp_path.parent / "elsewhere")
    (tmp_path / "apt" / "loose").symlink_to(tmp_path / "nowhere")
    assert bundles.find_faults(tmp_path, index, PATHS) == [
        "apt/loose: it is a link",
        "wheels: it is a link",
        "wheels/a.whl: missing",
        "wheels/b.whl: missing",
    ]


def test_pieces_that_an_earlier_larger_bundle_left_are_not_foreign(
    tmp_path: Path, index: Any
) -> None:
    (tmp_path / pieces.LIST).write_text('{"files": [], "pieces": []}')
    (tmp_path / pieces.name_piece(7)).write_bytes(b"old")
    (tmp_path / "wheels" / pieces.name_piece(7)).write_bytes(b"other")
    (tmp_path / pieces.name_piece(8)).symlink_to(tmp_path / "wheels" / "a.whl")
    assert bundles.find_faults(tmp_path, index, PATHS) == [
        "piece-0008: it is a link",
        "wheels/piece-0007: the index does not name it",
    ]


def test_an_index_nested_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "find_signer", lambda _: "A" * 40)
    (tmp_path / bundles.INDEX).write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(UserError, match="is no document"):
        bundles.read_index(tmp_path, "A" * 40)


def test_a_path_that_the_index_does_not_name_is_a_fault(tmp_path: Path, index: Any) -> None:
    assert bundles.find_faults(tmp_path, index, ["../x"]) == ["../x: the index does not name it"]


def test_an_unfinished_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no bundle\.json: this is no finished offline bundle"):
        bundles.read_index(tmp_path, "A" * 40)
