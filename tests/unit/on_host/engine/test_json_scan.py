"""The scan of a request's JSON agrees with the parser, whatever it is made of."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_prov.on_host.engine import json_scan
from kimi_prov.on_host.engine.json_scan import Limits, Scan, TooMuchError

FIELDS = ("stream", "stream_options")
ODD = st.text(alphabet='"\\[]{},: \n\u00e9\u225c\U0001f600nu0', max_size=9)
NAMES = st.one_of(ODD, st.sampled_from([*FIELDS, "messages", "input", "a"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ODD,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=40,
)
OPTIONS = st.sampled_from([None, 2])


class Pairs(list):
    """The names and values of an object, with those that come twice."""


def count(value: Any) -> int:
    """Names and values."""
    if isinstance(value, Pairs):
        return 1 + sum(1 + count(inner) for _, inner in value)
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


def depth(value: Any) -> int:
    if isinstance(value, Pairs):
        return 1 + max((depth(inner) for _, inner in value), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def scanned(text: bytes, limits: Limits | None = None) -> Scan:
    scan = Scan(text, limits or Limits(), FIELDS)
    for _ in scan.run():
        pass
    return scan


@pytest.fixture(params=[1, 2, 3, 7, 4096], ids=lambda size: f"slices of {size}")
def sliced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices end anywhere: inside of an escape, of a number, of a character."""
    monkeypatch.setattr(json_scan, "_SLICE", request.param)
    # One byte more than an escape's first: else nothing could go on.
    monkeypatch.setattr(json_scan, "_STRING_SLICE", request.param + 1)


@pytest.mark.usefixtures("sliced")
@given(value=JSON, escaped=st.booleans(), indent=OPTIONS)
def test_it_counts_what_the_parser_finds(value: Any, escaped: bool, indent: int | None) -> None:
    if isinstance(value, dict) and isinstance(value.get("messages"), str | list):
        value["other"] = value.pop("messages")
    text = json.dumps(value, ensure_ascii=escaped, indent=indent)
    data = text.encode("utf-8", "surrogatepass")
    scan = scanned(data)
    parsed = json.loads(text, object_pairs_hook=Pairs)
    assert (scan.values, scan.depth) == (count(parsed), depth(parsed))
    located = {name: json.loads(data[a:b]) for name, (a, b) in scan.spans.items()}
    wanted = value if isinstance(value, dict) else {}
    assert located == {name: wanted[name] for name in FIELDS if name in wanted}


@given(data=st.binary(max_size=60) | st.text('"\\[]{},:\n 1at', max_size=60).map(str.encode))
def test_what_is_no_json_ends_it_and_is_not_counted_beyond_its_bytes(data: bytes) -> None:
    try:
        scan = scanned(data)
    except TooMuchError:
        return
    assert scan.values <= len(data)


@pytest.mark.parametrize(
    "text",
    [
        r'{"\u0073tream": true}',
        '{"stream": false, "stream": true}',
        '{"a": {"stream": false}, "b": ["stream", {"stream": 1}], "stream" \n:\t true \n}',
        '{"stream":true}{"stream":false}',
        '\ufeff{"stream":true,"x":1}',
    ],
)
def test_a_field_is_found_where_the_parser_finds_it(text: str) -> None:
    data = text.encode()
    start, end = scanned(data).spans["stream"]
    assert data[start:end].strip() == b"true"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"x":[' + "0," * 99 + "0]}", "more than 50 JSON names and values"),
        ("[" * 11 + "]" * 11, "more than 10 levels"),
        ("[" * 99, "more than 10 levels"),
        ('{"input":[' + "{}," * 20 + "{}]}", "more than 20 items"),
        ('{"messages":[{"role":"user"},{}]}', "expected objects with a role"),
        ('{"messages":[{"content":{"role":"user"}}]}', "expected objects with a role"),
        ('{"messages":[{"role":"user"},{"content":"a"}]}', "expected objects with a role"),
        ('{"messages":[{"role":"user"},[]]}', "expected objects with a role"),
        ('{"messages":["a"]}', "expected objects with a role"),
        ('{"input":[{"content":[' + "0," * 20 + "0]}]}", "more than 20 items"),
        ('{"tools":[' + "0," * 20 + "0]}", "tools has more than 20 items"),
        ('{"stop":[' + '"a",' * 20 + "0]}", "stop has more than 20 items"),
        ('{"prompt":[' + "1," * 25 + '"a"]}', "prompt has more than 20 items"),
        ('{"prompt":[' + "0.5," * 20 + "0.5]}", "prompt has more than 20 items"),
        (json.dumps({"messages": "a" * 99}), "expected an array"),
        (json.dumps({"m": [{"arguments": "[" + "0," * 60 + "0]"}]}), "more than 50 JSON"),
        (json.dumps({"m": [{"arguments": "[" * 99}]}), "more than 10 levels"),
        (json.dumps({"m": [{"arguments": "a" * 200}]}), "arguments have 202 bytes"),
        ('{"m":[{"\\u0061rguments":"[[[[[[[[[[[[[[["}]}', "more than 10 levels"),
    ],
)
def test_each_bound_is_held_and_told(text: str, said: str) -> None:
    limits = Limits(values=50, items=20, depth=10, arguments_bytes=190)
    with pytest.raises(TooMuchError, match=re.escape(said)):
        scanned(text.encode(), limits)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [1] * 45},
        {"prompt": [[1] * 20, [2] * 20]},
        {"tools": [{"function": {"parameters": {"enum": ["a"] * 30}}}]},
        {"messages": [{"role": "user", "content": "[{}," * 99}] * 5},
        {"messages": [{"content": [{"text": "a"}], "role": "user"}, {"\u0072ole": "tool"}]},
        {"a": {"messages": [1]}, "m": [{"arguments": '{"messages": [1]}'}]},
    ],
)
def test_what_is_cheap_to_check_is_bounded_as_values_alone(body: object) -> None:
    assert scanned(json.dumps(body).encode(), Limits(values=50, items=20)).items <= 20


@pytest.mark.parametrize(
    "piece", [b"[[],[],[]],", b"{},", b"[", b'"",', b'{"a":', b"0,", b'"\\"",']
)
def test_a_flood_of_values_ends_it_early(piece: bytes) -> None:
    """However long the text, what is read of it is bounded by the limits."""
    limits = Limits(values=1000)
    scan = Scan(b'{"x":[' + piece * 1_000_000, limits)
    with pytest.raises(TooMuchError):
        for _ in scan.run():
            pass
    assert scan.values <= limits.values + 1


@pytest.mark.parametrize(
    "text", [b'"' + b"\\n" * 2_000_000 + b'"', b"1" * 4_000_000, b" " * 4_000_000]
)
def test_a_long_string_is_read_in_many_slices(text: bytes) -> None:
    scan = Scan(b'{"x":' + text + b"}", Limits())
    assert sum(1 for _ in scan.run()) > 20
    assert scan.values <= 3
