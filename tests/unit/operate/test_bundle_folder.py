"""The folder that a bundle is gathered in: whose links are removed, and what room pieces take."""

from __future__ import annotations

import hashlib
import json
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.operate.bundle import coverage
from kimi_prov.operate.bundle.difference import Earlier
from kimi_prov.operate.bundle.gather import Extent, Gathering
from kimi_prov.packaging import bundles, pieces

if TYPE_CHECKING:
    from pathlib import Path

DIGEST = "0" * 64
CATALOGUE: Any = SimpleNamespace(engines=[], web=[], pythons=[], locks={"a.txt": "1", "b.txt": "3"})


class Lock(NamedTuple):
    name: str
    python: str = "3.11"
    arch: str = "x86_64"


MACHINE: Any = SimpleNamespace(
    plan={}, needs=SimpleNamespace(locks=[Lock("a.txt"), Lock("b.txt")], python=None)
)


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Earlier:
    """An earlier bundle of two locks, one of which is another now."""
    folder = tmp_path / "earlier"
    (folder / "wheels").mkdir(parents=True)
    locks = [
        {"name": name, "sha256": digest, "python": "3.11", "arch": "x86_64", "files": [file]}
        for name, digest, file in (("a.txt", "1", "wheels/a.whl"), ("b.txt", "2", "wheels/b.whl"))
    ]
    files = [
        {"path": name, "bytes": size, "sha256": DIGEST}
        for name, size in (("wheels/a.whl", 600), ("wheels/b.whl", 300), ("apt/x.tar", 50))
    ]
    index = {
        "schema": bundles.SCHEMA,
        "locks": locks,
        "pythons": [],
        "archives": [],
        "weights": [],
        "files": files,
    }
    (folder / bundles.INDEX).write_text(json.dumps(index))
    monkeypatch.setattr(bundles, "find_signer", lambda _: "A" * 40)
    return Earlier(folder)


def test_a_damaged_file_that_is_installed_is_joined_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = tmp_path / "source", tmp_path / "carried"
    source.write_bytes(b"a wheel")
    cut = pieces.cut([("wheels/a.whl", source)], 4, lambda at: folder / pieces.name_piece(at))
    (folder / pieces.LIST).write_text(pieces.format_list(cut))
    digest = hashlib.sha256(b"a wheel").hexdigest()
    row = {"path": "wheels/a.whl", "bytes": 7, "sha256": digest}
    index = {"files": [row], "archives": []}
    monkeypatch.setattr(bundles, "read_index", lambda *_: index)
    (folder / "wheels").mkdir()
    (folder / "wheels" / "a.whl").write_bytes(b"damaged")
    for name in (bundles.INDEX, bundles.SIGNATURE, bundles.KEY):
        (folder / name).write_bytes(b"x")
    assert coverage.find_faults(folder, ("wheels/a.whl",), None) == []
    assert (folder / "wheels" / "a.whl").read_bytes() == b"a wheel"


def gather(folder: Path, since: Earlier | None, *machines: Any) -> Gathering:
    return Gathering(
        folder, machines, CATALOGUE, lambda _: None, Extent(since=since, piece_bytes=100)
    )


def test_only_links_into_the_earlier_bundle_are_removed(tmp_path: Path, earlier: Earlier) -> None:
    output, large = tmp_path / "output", tmp_path / "large"
    (output / "wheels").mkdir(parents=True)
    large.mkdir()
    (output / "wheels" / "a.whl").symlink_to(earlier.folder / "wheels" / "a.whl")
    (output / "weights").symlink_to(large)
    with pytest.raises(UserError, match="weights is a link"):
        gather(output, earlier).prepare()
    assert (output / "weights").is_symlink()
    (output / "weights").unlink()
    gather(output, earlier).prepare()
    assert not (output / "wheels" / "a.whl").is_symlink()


def test_pieces_of_a_difference_take_no_room_for_what_the_earlier_has(
    tmp_path: Path, earlier: Earlier, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "output"
    output.mkdir()
    usage = SimpleNamespace(total=9999, used=0, free=1400)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    # 1000 bytes once, and in pieces the 400 that are not of the lock that stayed.
    gather(output, earlier, MACHINE).check_room(1000)
    for since, free in ((earlier, 1399), (None, 1999)):
        usage.free = free
        with pytest.raises(UserError) as refused:
            gather(output, since, MACHINE).check_room(1000)
        assert refused.value.exit_code is ExitCode.BLOCKED
