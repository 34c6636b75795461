"""Which files are read as logs, packed or not, and which are refused."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
from pathlib import Path

import pytest

from kimi_prov.errors import UserError
from kimi_prov.operate.diagnosis import log_files

TEXT = b"one\ntwo\n\nfour"
LINES = [b"one\n", b"two\n", b"\n", b"four"]


def read(*paths: Path) -> dict[str, list[bytes]]:
    logs = log_files.read_logs(paths, lambda _count: None)
    return {name: list(lines) for name, lines in logs}


def packed(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("_", "."))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        archive.addfile(tarfile.TarInfo("link"))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [TEXT, gzip.compress(TEXT), lzma.compress(TEXT), b"\xef\xbb\xbf" + TEXT],
    ids=["plain", "gzip", "xz", "mark of UTF-8"],
)
def test_a_file_is_read_line_by_line(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(content)
    assert read(file) == {str(file): LINES}


def test_what_powershell_writes_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes("eins\nzwei\n".encode("utf-16"))
    assert read(file)[str(file)] == [b"eins", b"zwei"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_archive_is_read_file_by_file(pack, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "bundle.tar"
    file.write_bytes(pack(packed(host_log=TEXT, facts_json=b"{}")))
    assert read(file) == {f"{file}:host.log": LINES, f"{file}:link": []}


def test_a_folder_is_read_whole_but_for_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.log").write_bytes(b"x\n")
    (tmp_path / "a.log").write_bytes(b"a\n")
    (tmp_path / "core").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "link").symlink_to(tmp_path / "a.log")
    names = [f"{tmp_path}/a.log", f"{tmp_path}/b/x.log"]
    assert list(read(tmp_path)) == names
    assert log_files.count_bytes((tmp_path,)) == 4 + 6


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"x" * 1_000_000 + b"\nend\n")
    first, last = read(file)[str(file)]
    assert (len(first), last) == (1 << 16, b"end\n")


def test_what_is_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"line\n" * 1000)
    counts: list[int] = []
    for _name, lines in log_files.read_logs((file,), counts.append):
        list(lines)
    assert sum(counts) == 5000


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x7fELF\0\0\0", "holds no text"),
        (gzip.compress(os.urandom(4000))[:2000], "cannot be read"),
        (None, "No such file"),
    ],
    ids=["binary", "cut off", "absent"],
)
def test_a_file_that_is_no_log_is_named(content: bytes | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read(file)
    assert str(file) in str(refused.value)
    assert says in str(refused.value)


def test_an_empty_folder_and_a_device_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(UserError):
            read(path)
