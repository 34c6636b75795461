"""Documents from elsewhere: whatever a name leads to and whatever stands there, one sentence."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import pytest
from waiting import HANGS_S

from kimi_prov import documents
from kimi_prov.errors import ExitCode, UserError

LIMIT = 1 << 20


def text(path: Path) -> str:
    return documents.read_document(path, what="a note", limit=LIMIT, fix="mend it").text


def refused(path: Path) -> str:
    start = time.monotonic()
    with pytest.raises(UserError) as caught:
        text(path)
    assert time.monotonic() - start < HANGS_S
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    assert caught.value.fix == "mend it"
    assert str(path) in caught.value.message
    return caught.value.message


def yaml_refused(content: str) -> str:
    with pytest.raises(UserError) as caught:
        documents.Document("x.yml", content).yaml("mend it")
    return caught.value.message


def json_refused(content: str) -> str:
    with pytest.raises(UserError) as caught:
        documents.Document("x.json", content).json("mend it")
    return caught.value.message


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_text_is_read_with_and_without_a_mark_and_packing(
    tmp_path: Path, mark: bytes, *, packed: bool
) -> None:
    content = mark + "Größe\n".encode()
    file = tmp_path / "note"
    file.write_bytes(gzip.compress(content) if packed else content)
    assert text(file) == "Größe\n"


def test_a_pipe_that_nobody_writes_into_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "nothing came out of this pipe" in refused(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        assert "nothing came out of this pipe" in refused(tmp_path / "pipe")
    finally:
        os.close(writer)


def test_a_file_is_as_large_as_its_kind_can_be(tmp_path: Path) -> None:
    file = tmp_path / "note"
    file.write_bytes(b"x" * LIMIT)
    assert len(text(file)) == LIMIT
    file.write_bytes(b"x" * (LIMIT + 1))
    assert "larger than a note can be: over 1 MiB" in refused(file)


def test_what_is_packed_is_unpacked_within_the_same_limit(tmp_path: Path) -> None:
    file = tmp_path / "note.gz"
    file.write_bytes(gzip.compress(b"\0" * (64 << 20)))
    assert "larger than a note can be" in refused(file)
    file.write_bytes(gzip.compress(b"ab") + gzip.compress(b"cd"))
    assert text(file) == "abcd"
    file.write_bytes(gzip.compress(b"") * 10_000)
    assert "parts" in refused(file)
    file.write_bytes(gzip.compress(b"words" * 1000)[:-12])
    assert "cut off" in refused(file)
    file.write_bytes(b"\x1f\x8b" + b"x" * 50)
    assert "cannot be read" in refused(file)


@pytest.mark.parametrize("content", [b"\xff\xfea\0b\0", b"\x80", b"\xed\xa0\x80"])
def test_what_is_not_utf_8_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "note").write_bytes(content)
    assert "not UTF-8" in refused(tmp_path / "note")


def test_a_name_that_is_not_utf_8_can_be_read_and_told(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/gr\xf6sse")
    Path(name).write_text("words")
    assert text(Path(name)) == "words"
    assert "No such file" in refused(Path(name + "x"))


def test_names_for_parts_do_not_multiply_them() -> None:
    lines = ["a: &a [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"{b}: &{b} [{', '.join(f'*{a}' for _ in range(10))}]" for a, b in ["ab", "bc", "cd"]]
    assert len(json.dumps(documents.Document("x", "\n".join(lines)).yaml(""))) > 10_000
    lines += [f"{b}: &{b} [{', '.join(f'*{a}' for _ in range(10))}]" for a, b in ["de", "ef", "fg"]]
    assert "x.yml:5: not YAML: more than 100000 values" in yaml_refused("\n".join(lines))
    merged = ["a: &a {x: 1}"]
    merged += [f"k{n}: &k{n} {{<<: [{'*k' + str(n - 1) if n else '*a'}, *a]}}" for n in range(3)]
    assert documents.Document("x", "\n".join(merged)).yaml("")["k2"] == {"x": 1}
    assert "nothing before it is called" in yaml_refused("a: &a [*a]")
    assert "x.yml:2: not YAML: nothing before it is called" in yaml_refused("a: 1\nb: *other\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a:\n  b: .nan\n", "x.yml:2: a.b: wanted a number, found nan"),
        ("a:\n  - 1\n  - -.inf\n", "x.yml:3: a[1]: wanted a number, found -inf"),
        ("a: 1.0e+400\n", "x.yml:1: a: wanted a number, found inf"),
        (f"a: 0x{'f' * 20}\n", "x.yml:1: a: a number larger than 2^63"),
        (f"a: {'1:' * 100_000}1\n", "x.yml:1: not YAML: a number has too many digits"),
        (f"a: {'9' * 100_000}\n", "x.yml:1: not YAML: a number has too many digits"),
        ("a: 1\nb: !!int ''\n", "x.yml:2: not YAML: this is no int"),
        ("a: !!bool x\n", "x.yml:1: not YAML: this is no bool"),
        ("a: 2026-99-99\n", "x.yml:1: not YAML: this is no timestamp"),
    ],
)
def test_numbers_and_dates_that_are_none_are_told_with_line_and_key(
    content: str, said: str
) -> None:
    assert yaml_refused(content) == said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"a": {"b": NaN}}', "x.json: a.b: wanted a number, found nan"),
        ('{"a": [1, -Infinity]}', "x.json: a[1]: wanted a number, found -inf"),
        ('{"a": 1e999}', "x.json: a: wanted a number, found inf"),
        ('{"a": 1' + "0" * 40 + "}", "x.json: a: a number larger than 2^63"),
        ('{"a": ' + "9" * 5000 + "}", "x.json: a number has too many digits"),
        ('{"a": "\\udc80"}', "x.json: a: not UTF-8: half a character"),
        ('{"a\\udc80": 1}', "x.json: a?: not UTF-8: half a character"),
        ("[" * 100_000, "x.json: nested deeper than 100 levels"),
        ("[1,\n[1 2]]", "x.json:2: not JSON: Expecting ',' delimiter"),
        ("[" + "0," * 100_001 + "0]", "more than 100000 values"),
    ],
)
def test_json_is_held_to_the_same_bounds(content: str, said: str) -> None:
    assert said in json_refused(content)


def test_a_nest_that_python_parses_is_refused_with_where_it_leads() -> None:
    assert "x.json: a.a.a" in json_refused('{"a":' * 200 + "1" + "}" * 200)


def test_large_numbers_that_machines_have_pass() -> None:
    content = {"bytes": 6 << 50, "flops": 4.5e15, "negative": -1, "yes": True, "nothing": None}
    assert documents.Document("x", json.dumps(content)).json("") == content


def test_directives_that_are_held_against_each_other_are_counted_first():
    text = "".join(f"%TAG !{n:x}! t:\n" for n in range(200_000)) + "---\ncpu: 1\n"
    with pytest.raises(UserError, match="more than 100 %TAG"):
        documents.Document("sheet", text).yaml("mend it")
