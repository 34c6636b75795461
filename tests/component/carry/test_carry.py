"""What is carried to a machine without a network: pieces come together, wheels are an index."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from kimi_prov.packaging import lock_files

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu" / "carry"))
import carried
import pack
import strip


def archive(path: Path, name: str, content: bytes) -> Path:
    """A tar with one file."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's folder, and two archives in pieces of 3,000 bytes beside it."""
    parts = [
        (
            pack.Part(name, to, ("processor",), lambda _: None),
            archive(tmp_path / name, "file", text),
        )
        for name, to, text in (
            ("one.tar.gz", "one", os.urandom(10_000)),
            ("two.tar", "two", os.urandom(500)),
        )
    ]
    index = pack.cut(parts, tmp_path / "calls", 3000)
    assert all(row["bytes"] <= 3000 for row in index["pieces"])
    pieces = tmp_path / "w" / "pieces"
    pieces.mkdir(parents=True)
    (pieces / "index.json").write_text(json.dumps(index))
    monkeypatch.setattr(carried, "W", tmp_path / "w")
    monkeypatch.setattr(carried, "PIECES", pieces)
    monkeypatch.setattr(carried, "MARKS", tmp_path / "w" / "unpacked")
    monkeypatch.setattr(carried, "detached", lambda *_: None)
    return tmp_path / "w"


def test_pieces_in_any_order_come_together(there: Path) -> None:
    calls = sorted((there.parent / "calls").iterdir(), reverse=True)
    for folder in calls:
        for piece in folder.iterdir():
            piece.rename(there / "pieces" / piece.name)
        carried.take()
        carried.unpack()
    for name in ("one.tar.gz", "two.tar"):
        with tarfile.open(there.parent / name) as tar:
            packed = tar.extractfile("file")
            assert packed is not None
            assert (there / name.partition(".")[0] / "file").read_bytes() == packed.read()
    # The disk may be small; all pieces are told as taken all the same.
    assert [path.name for path in (there / "pieces").iterdir()] == ["index.json"]
    carried.take()


@pytest.mark.parametrize("kind", ["processor", "served", "group", "tower"])
def test_each_kind_has_its_own_port_and_finds_what_was_packed(kind: str) -> None:
    assert len({*carried.PORT.values()}) == len(carried.PORT)
    assert (Path(pack.ROOT) / "tests" / "gpu" / carried.FILES[kind]).exists()
    assert carried.packed_as(kind) in pack.KINDS
    found = carried.settings(kind)
    assert found["kimi_pip_index_url"].endswith(
        f":{carried.PORT[kind]}/simple-{carried.packed_as(kind)}/"
    )
    assert ("kimi_engine_version" in found) == (kind != "processor")
    assert f"start {kind}" in pack.instructions(
        {"archives": [], "pieces": [{}]}, ["processor", "served"], "c"
    )


def test_a_piece_with_other_bytes_is_named_and_not_taken(there: Path) -> None:
    (there / "pieces" / "p000").write_bytes(b"other")
    with pytest.raises(SystemExit, match="p000 came with other bytes"):
        carried.take()
    assert not (there / "pieces" / "p000").exists()


def test_what_is_installed_becomes_wheels_with_an_index_and_a_lock(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels-served"
    wheels.mkdir()
    carried.write_wheel(importlib.metadata.distribution("pluggy"), wheels)
    version = importlib.metadata.version("pluggy")
    (wheel,) = wheels.iterdir()
    assert wheel.name == f"pluggy-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as made:
        names = made.namelist()
    assert {"pluggy/__init__.py", f"pluggy-{version}.dist-info/RECORD"} <= set(names)
    assert not [name for name in names if ".." in name or name.endswith((".pyc", "INSTALLER"))]
    carried.write_lock(wheels, tmp_path / "site" / "lock.txt")
    (pin,) = lock_files.read_pins((tmp_path / "site" / "lock.txt").read_text())
    assert pin == ("pluggy", version, {hashlib.sha256(wheel.read_bytes()).hexdigest()})
    carried.simple_index(wheels, tmp_path / "simple")
    page = (tmp_path / "simple" / "pluggy" / "index.html").read_text()
    assert f'href="../../wheels-served/{wheel.name}"' in page
    command = ["uv", "pip", "install", "-q", "--no-deps", "--require-hashes", "--target"]
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", "0", "--directory", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
    )
    assert server.stdout is not None
    with server:
        try:
            port = server.stdout.readline().split("port ")[1].split()[0]
            done = subprocess.run(
                [
                    *(*command, str(tmp_path / "site-packages")),
                    *("--default-index", f"http://127.0.0.1:{port}/simple/"),
                    *("--requirement", str(tmp_path / "site" / "lock.txt")),
                ],
                env={**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_INDEX": ""},
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            # Whatever fails: who leaves `with` waits for the server's end.
            server.terminate()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site-packages" / "pluggy" / "__init__.py").exists()


def container(*entries: tuple[int, int, bytes]) -> bytes:
    """CUDA's container of kinds, capabilities and bodies."""
    rows = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 0x101, 64, len(body), capability) + body
        for kind, capability, body in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(rows)) + rows


def test_a_stripped_wheel_has_one_capability_s_code_and_a_right_record(tmp_path: Path) -> None:
    """Code for other cards is zeros in its place; PTX stays where there is no machine code."""
    both = container((2, 80, b"eighty"), (2, 90, b"ninety"), (1, 90, b"text90"))
    library = b"\x7fELF" + both + b"rest" + container((1, 80, b"text80"), (1, 120, b"text12"))
    released, made = tmp_path / "a-1-py3-none-any.whl", tmp_path / "made.whl"
    with zipfile.ZipFile(released, "w") as wheel:
        wheel.writestr("a/lib.so", library)
        wheel.writestr("a/lib.a", b"not wanted")
        wheel.writestr("a-1.dist-info/RECORD", "stale")
    strip.strip(released, made, 90, r"\.a$")
    with zipfile.ZipFile(made) as wheel:
        assert wheel.namelist() == ["a/lib.so", "a-1.dist-info/RECORD"]
        found = wheel.read("a/lib.so")
        [row, _] = wheel.read("a-1.dist-info/RECORD").decode().splitlines()
    assert len(found) == len(library)
    words = (b"eighty", b"ninety", b"text90", b"text80", b"text12", b"rest")
    assert [word in found for word in words] == [False, True, False, True, False, True]
    digest = base64.urlsafe_b64encode(hashlib.sha256(found).digest()).decode().rstrip("=")
    assert row == f"a/lib.so,sha256={digest},{len(library)}"
