"""What may be shown passes as it is; what steers is written out."""

from __future__ import annotations

import json
import shlex
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kimi_prov.contract import clean_text

ANY = some.text(some.characters(exclude_categories=[]))
STEERS = {"Cc", "Cs", "Zl", "Zp"}


@given(ANY)
def test_nothing_of_any_text_steers(text: str) -> None:
    for clean in (
        clean_text.clean_block,
        clean_text.clean_line,
        clean_text.clean_row,
        clean_text.clean_entry,
    ):
        once = clean(text)
        assert not {unicodedata.category(c) for c in once if c not in "\n\t"} & STEERS
        assert clean_text.clean_block(once) == once
    for clean in (clean_text.clean_line, clean_text.clean_row):
        assert "\n" not in clean(text)


@given(some.recursive(ANY, lambda inner: some.lists(inner) | some.dictionaries(ANY, inner)))
def test_json_keeps_the_values_and_prints_nothing_that_steers(document: object) -> None:
    text = clean_text.as_json(document)
    assert not {unicodedata.category(c) for c in text if c != "\n"} & STEERS
    whole = json.dumps(document)
    halves = any(0xD800 <= ord(c) <= 0xDFFF for c in json.dumps(document, ensure_ascii=False))
    assert halves or json.loads(text) == json.loads(whole)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Größe 3 µs, 日本語, 1\u202f000 ✓ e\u0301", "Größe 3 µs, 日本語, 1\u202f000 ✓ e\u0301"),
        ("\x1b[1;31mERROR\x1b[0m it broke\r\nthere", "ERROR it broke\nthere"),
        ("cpu.\x1b[2J", r"cpu.\x1b[2J"),
        ("\x1b[\x1b[0m2J", r"\x1b[2J"),
        ("a\u202eb\u200bc\ufeff\x9b\x7f", r"a\u202eb\u200bc\ufeff\x9b\x7f"),
        ("a\U000e0041\ud800", r"a\U000e0041\ud800"),
        ("10 %\r20 %", r"10 %\r20 %"),
    ],
)
def test_what_steers_is_written_out_and_all_else_stays(text: str, expected: str) -> None:
    assert clean_text.clean_block(text) == expected


def test_a_further_line_does_not_pass_for_one_of_ours() -> None:
    assert clean_text.clean_entry("no\n  fix: run this").splitlines() == [
        "no",
        "           fix: run this",
    ]


def test_keys_are_cleaned_as_values_are() -> None:
    found = clean_text.clean_data({"\x1b": [{"a\u202e": ("\x9b", 1, None, True)}]})
    assert found == {r"\x1b": [{r"a\u202e": [r"\x9b", 1, None, True]}]}


def test_half_of_a_character_is_no_value_of_json() -> None:
    assert json.loads(clean_text.as_json({"a": "\ud800"})) == {"a": "\ufffd"}


@pytest.mark.parametrize("name", ["$(id)", "a b", "`id`", "x;id", "-oProxyCommand=id"])
def test_a_word_of_a_command_is_one_word(name: str) -> None:
    assert shlex.split(f"ssh {clean_text.quote_word(name)}")[1:] == [name]
