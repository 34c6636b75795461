"""What a manifest may say, and what the mark is good for."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.progress import Progress
from kimi_prov.on_host.weights import fetch
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.manifest import Entry, Manifest, Record
from kimi_prov.on_host.weights.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHA = "a" * 64


def row(path: Any = "model.safetensors", size: Any = 3, sha256: Any = SHA) -> dict[str, Any]:
    return {"path": path, "size": size, "sha256": sha256}


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../outside",
        "a/../../outside",
        "a//b",
        "./a",
        "",
        "a\nb",
        "a\\b",
        7,
        ".kimi-verified",
        ".kimi-partial/x",
        ".kimi-lock",
        "kimi-manifest.json",
    ],
)
def test_a_path_that_could_leave_the_directory_or_take_our_names_is_refused(path: Any) -> None:
    with pytest.raises(HostError, match=r"pinned\.json: files\[0\]: path"):
        manifests.parse({"files": [row(path)]}, "pinned.json")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (row(size=-1), "size"),
        (row(size=True), "size"),
        (row(size="3"), "size"),
        (row(sha256="abc"), "sha256"),
        (row(sha256=None), "sha256"),
        ("model.safetensors", "object"),
    ],
)
def test_a_row_that_verifies_nothing_is_refused(bad: Any, words: str) -> None:
    with pytest.raises(HostError, match=words):
        manifests.parse({"files": [bad]}, "pinned.json")


@pytest.mark.parametrize("document", [None, [], {}, {"files": []}, {"files": {}}])
def test_a_document_without_files_is_refused(document: Any) -> None:
    with pytest.raises(HostError, match="expected"):
        manifests.parse(document, "pinned.json")


def test_one_path_twice_and_a_file_as_directory_are_refused() -> None:
    with pytest.raises(HostError, match="twice"):
        manifests.parse({"files": [row(), row()]}, "x")
    with pytest.raises(HostError, match="below another"):
        manifests.parse({"files": [row("a"), row("a/b")]}, "x")


def test_the_digest_is_of_the_files_and_not_of_their_order_or_source() -> None:
    one, two = Entry("a", 1, SHA), Entry("b", 2, "b" * 64)
    digest = Manifest([one, two], source="file:///x").sha256
    assert Manifest([two, one], revision="v1").sha256 == digest
    assert Manifest([one, Entry("b", 2, "c" * 64)]).sha256 != digest


def test_what_is_written_reads_the_same() -> None:
    made = Manifest([Entry("a", 1, SHA), Entry("b/c", 0, "b" * 64)], "hf://x/y@z", "c" * 40)
    assert manifests.parse(made.to_json(), "x") == made


def test_the_mark_holds_for_its_manifest_and_untouched_files_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    manifest = Manifest([Entry("a", 3, SHA)])
    assert not manifests.is_mark_valid(str(tmp_path), manifest)
    manifests.write_mark(str(tmp_path), manifest, {"a": Record.from_file(str(tmp_path / "a"), SHA)})
    assert manifests.is_mark_valid(str(tmp_path), manifest)
    assert not manifests.is_mark_valid(str(tmp_path), Manifest([Entry("a", 3, "b" * 64)]))
    (tmp_path / "a").write_bytes(b"abd")
    assert not manifests.is_mark_valid(str(tmp_path), manifest)
    (tmp_path / "a").unlink()
    assert not manifests.is_mark_valid(str(tmp_path), manifest)


@pytest.mark.parametrize(
    "forged",
    [
        {"manifest_sha256": "0" * 64},
        {"verified": {}},
        {"verified": {"a": {"size": 3, "mtime_ns": 1, "sha256": SHA}}},
        {"verified": {"a": {"size": "3", "mtime_ns": "x", "sha256": SHA}}},
        {"verified": {"../a": {"size": 3, "mtime_ns": 1, "sha256": SHA}}},
        {"verified": [["a", SHA]]},
        {"verified": {"a": True}},
    ],
)
def test_a_forged_mark_is_no_mark(tmp_path: Path, forged: dict[str, Any]) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    manifest = Manifest([Entry("a", 3, SHA)])
    manifests.write_mark(str(tmp_path), manifest, {"a": Record.from_file(str(tmp_path / "a"), SHA)})
    mark = tmp_path / ".kimi-verified"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | forged))
    assert not manifests.is_mark_valid(str(tmp_path), manifest)


def test_half_a_mark_is_no_mark(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    manifest = Manifest([Entry("a", 3, SHA)])
    manifests.write_mark(str(tmp_path), manifest, {"a": Record.from_file(str(tmp_path / "a"), SHA)})
    mark = tmp_path / ".kimi-verified"
    mark.write_text(mark.read_text()[:40])
    assert not manifests.is_mark_valid(str(tmp_path), manifest)


def test_a_directory_is_described_ready_to_be_pinned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b").write_bytes(b"")
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / ".hidden").write_bytes(b"no")
    assert manifests.main([str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [r["path"] for r in printed["files"]] == ["a", "sub/b"]
    assert printed["files"][0]["sha256"] == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    assert manifests.parse(printed, "x").total_bytes == 3


class Counted(str):
    """Text that counts how often it is compared."""

    __slots__ = ()
    compared: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def comparisons(work: Callable[[], object]) -> int:
    """How many comparisons of paths this takes."""
    Counted.compared = 0
    with contextlib.suppress(HostError):
        work()
    return Counted.compared


def many(number: int) -> list[dict[str, Any]]:
    return [row(path=Counted(f"deep/er/{n:05}.safetensors")) for n in range(number)]


def test_a_manifest_of_many_files_is_read_in_proportion_to_them() -> None:
    rows = many(400)
    assert comparisons(lambda: manifests.parse({"files": rows}, "pinned.json")) < 20 * len(rows)


def test_a_pinned_manifest_is_held_against_a_listing_in_proportion_to_its_files(
    tmp_path: Path,
) -> None:
    pinned = manifests.parse({"files": many(400)}, "pinned.json")
    there = manifests.parse({"files": [*many(399), row("deep/er/00399.safetensors", 4)]}, "hub")

    class Hub(Source):
        """A hub that has another file than the manifest, the last of many."""

        name = "hf://a/b@main"
        needs_listing = True

        def listing(self, _revision: str | None) -> Manifest:
            return there

    class Listed(fetch.Config):
        def source_of(self) -> Source:
            return Hub()

    config = Listed("hf://a/b@main", str(tmp_path / "model"), pinned)
    with pytest.raises(HostError, match="is not the file that the manifest"):
        fetch.run(config, Progress(None, "download"))
    assert comparisons(lambda: fetch.run(config, Progress(None, "download"))) < 20 * 400
