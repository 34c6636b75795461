"""The file of prepared weights: half-written, damaged and foreign ones never count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kimi_prepared_weights import store

if TYPE_CHECKING:
    from pathlib import Path

KEY = {"vllm": "0.33.0", "ranks": [["tp", 0, 8]]}
TENSORS = [["layer.weight", "torch.int32", [2, 3]]]


def write(path: Path, *, finish: bool = True) -> None:
    with store.Writer(path) as writer:
        writer.add("layer.weight", iter([(memoryview(b"a" * 5000), 7)]))
        writer.add("layer.scale", iter([(memoryview(b"b" * 10), -9)]))
        if finish:
            writer.finish(KEY, TENSORS, {"layer.scale_float": 0.5})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = store.name_file(tmp_path / "prepared", "rank-tp0", KEY)
    write(file)
    return file


def test_what_was_written_is_read(path: Path) -> None:
    contents = store.read_contents(path, KEY)
    assert contents.tensors == TENSORS
    assert contents.values == {"layer.scale_float": 0.5}
    first, second = contents.blocks
    assert (first.path, first.size, first.sums) == ("layer.weight", 5000, (7,))
    assert (second.path, second.size, second.sums) == ("layer.scale", 10, (-9,))
    data = path.read_bytes()
    assert data[first.offset :][:5000] == b"a" * 5000
    assert data[second.offset :][:10] == b"b" * 10
    # Cards copy whole pages, registered by their addresses.
    assert first.offset % store.PAGE == second.offset % store.PAGE == 0


def test_another_key_has_another_name_and_is_refused_under_this_one(path: Path) -> None:
    other = {**KEY, "vllm": "0.34.0"}
    assert store.name_file(path.parent, "rank-tp0", other) != path
    with pytest.raises(store.DamagedError, match="another key"):
        store.read_contents(path, other)


@pytest.mark.parametrize("size", [0, 10, store.PAGE, 9000, -1])
def test_a_cut_file_is_damaged(path: Path, size: int) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    with pytest.raises(store.DamagedError):
        store.read_contents(path, KEY)


@pytest.mark.parametrize("where", [0, 20, 30, 40, -5])
def test_a_changed_byte_of_what_a_file_says_is_damage(path: Path, where: int) -> None:
    data = bytearray(path.read_bytes())
    data[where] ^= 4
    path.write_bytes(data)
    with pytest.raises(store.DamagedError):
        store.read_contents(path, KEY)


def test_without_its_end_nothing_is_left(tmp_path: Path) -> None:
    write(tmp_path / "rank-tp0-x.prepared", finish=False)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> object:
        yield memoryview(b"a"), 1
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"), store.Writer(tmp_path / "r-x.prepared") as one:
        one.add("layer", fail())
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_removed_and_a_living_one_s_is_not(tmp_path: Path) -> None:
    left = tmp_path / ".rank-tp0-1.prepared.99.partial"
    left.write_bytes(b"half")
    other = tmp_path / ".rank-tp1-1.prepared.99.partial"
    other.write_bytes(b"of another rank")
    with store.Writer(tmp_path / "rank-tp0-2.prepared"):
        assert store.remove_partial(tmp_path, "rank-tp0") == [left.name]
        assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_is_put_aside_is_no_longer_found(path: Path) -> None:
    store.put_aside(path)
    with pytest.raises(FileNotFoundError):
        store.read_contents(path, KEY)
    assert [one.suffix for one in path.parent.iterdir()] == [store.DAMAGED]
