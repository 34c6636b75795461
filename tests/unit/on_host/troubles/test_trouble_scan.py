"""How lines are searched: conditions of rows, alike lines, and what is kept of long logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kimi_prov.contract.troubles import Trouble, find_literals
from kimi_prov.on_host.troubles.scan import Patterns, Scanner

ROW = Trouble(
    id="diagnose.x",
    kind="fault",
    title="It broke",
    match=("gadget (?P<part>\\w+) broke",),
    cause="c",
)


def scan(*lines: str, row: Trouble = ROW) -> Scanner:
    scanner = Scanner(Patterns([row]))
    scanner.begin("a.log")
    for line in lines:
        scanner.read(line.encode() + b"\n")
    return scanner


def test_a_line_is_found_with_its_number_and_what_its_groups_matched() -> None:
    (hit,) = scan("fine", "the Gadget stays", "2026-05-14 23:00:10 gadget wheel broke").list_hits()
    assert (hit.first[0].line, hit.count, hit.values) == (3, 1, {"part": "wheel"})
    assert hit.first[0].text == "2026-05-14 23:00:10 gadget wheel broke"


def test_lines_that_differ_by_numbers_alone_are_still_told_apart() -> None:
    row = replace(ROW, match=("Xid .*: 79,",))
    (hit,) = scan("Xid (0): 63, a", "Xid (0): 79, a", "Xid (0): 79, b", row=row).list_hits()
    assert [one.line for one in hit.occurrences] == [2, 3]


def test_what_must_stand_elsewhere_may_stand_before_or_behind() -> None:
    row = replace(ROW, also=("the (?P<maker>\\w+) company",))
    assert scan("gadget x broke", row=row).list_hits() == []
    for lines in (("gadget x broke", "the acme company"), ("the acme company", "gadget x broke")):
        (hit,) = scan(*lines, row=row).list_hits()
        assert hit.values["maker"] == "acme"


def test_what_must_not_stand_anywhere_takes_a_row_away() -> None:
    row = replace(ROW, unless=("it was repaired",))
    assert len(scan("gadget x broke", row=row).list_hits()) == 1
    assert scan("gadget x broke", "it was repaired", row=row).list_hits() == []


@pytest.mark.parametrize(("between", "found"), [(0, 1), (3, 1), (4, 0)])
def test_what_must_stand_before_stands_near(between: int, found: int) -> None:
    row = replace(ROW, after="repairing", within=4)
    lines = ["repairing", *["..."] * between, "gadget x broke"]
    assert len(scan(*lines, row=row).list_hits()) == found


def test_a_line_that_must_be_repeated_counts_where_it_is_repeated_soon() -> None:
    row = replace(ROW, times=3, within=10)
    assert scan(*["gadget x broke"] * 2, row=row).list_hits() == []
    assert len(scan(*["gadget x broke"] * 3, row=row).list_hits()) == 1
    spread = ["gadget x broke", *["..."] * 10] * 3
    assert scan(*spread, row=row).list_hits() == []


def test_of_many_lines_the_first_and_the_last_are_kept_and_all_are_counted() -> None:
    (hit,) = scan(*[f"gadget w{n} broke" for n in range(100)]).list_hits()
    assert hit.count == 100
    assert [one.line for one in hit.occurrences] == [1, 2, 3, 4, 5, 6, 95, 96, 97, 98, 99, 100]


def test_a_bar_of_progress_is_read_state_by_state() -> None:
    (hit,) = scan("loading 1%\rloading 2%\rgadget x broke\rloading 3%").list_hits()
    assert hit.first[0].line == 1


def test_colours_do_not_hide_a_line() -> None:
    assert len(scan("\x1b[31mgad\x1b[0mget x bro\x1b[1;33mke\x1b[0m").list_hits()) == 1
    assert len(scan("\x1b[31mgadget x broke\x1b[0m").list_hits()) == 1


def test_the_first_error_that_no_row_knows_has_its_surroundings() -> None:
    scanner = scan("one", "gadget x broke: ERROR", "two", "ERROR who knows", "three", "ERROR again")
    error = scanner.first_error
    assert error is not None
    assert (error.line.line, error.line.text) == (4, "ERROR who knows")
    assert error.before[-1] == "two"
    assert error.after == ["three", "ERROR again"]


@pytest.mark.parametrize(
    "line", ["0 errors", "no error", "Traceback (most recent call last):", "errors=0", "finished"]
)
def test_a_line_without_an_error_is_none(line: str) -> None:
    assert scan(line).first_error is None


@pytest.mark.parametrize(
    ("line", "ready"),
    [
        ('INFO: 127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK', True),
        ('INFO: 127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 500', False),
        ("INFO:     Application startup complete.", True),
        ("The server is fired up and ready to roll!", True),
        ("ready after 3 s", True),
        ("not ready", False),
    ],
)
def test_an_engine_that_answers_is_seen(line: str, ready: bool) -> None:
    assert bool(scan(line).ready) is ready


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        (r"KV cache is needed \((\d+) GiB", "kv cache is needed ("),
        (r"(?i)Out of Memory: Killed", "out of memory: killed"),
        (r"abc|de(f|g)h", "abc/de"),
        (r"colou?rs of", "rs of"),
        (r"a{3}bcdef", "bcdef"),
        (r"[a-z]+ is broken\.", " is broken."),
        (r"x(?:long alternative|other)yz", "yz"),
        (r"port 8000 is taken", " is taken"),
    ],
)
def test_the_literal_of_an_expression_stands_in_every_match(pattern: str, literal: str) -> None:
    assert find_literals(pattern) == tuple(literal.split("/"))


def test_a_line_that_goes_on_without_something_is_no_trouble_however_often_it_comes() -> None:
    note = replace(ROW, id="diagnose.y", kind="harmless", match=("skipping a .* that is not here",))
    scanner = Scanner(Patterns([ROW, note]))
    scanner.begin("a.log")
    for _ in range(120):
        scanner.read(b"skipping a part that is not here: gadget x broke")
    assert [hit.row.kind for hit in scanner.list_hits()] == ["harmless"]
    scanner.read(b"gadget x broke")
    assert [hit.row.kind for hit in scanner.list_hits()] == ["harmless", "fault"]
