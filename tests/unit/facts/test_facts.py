"""Facts files from elsewhere: whole ones are taken, broken ones are named, none ends in a trace."""

from __future__ import annotations

import copy
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from odd_files import read_or_refused

from kimi_prov.catalog import loader
from kimi_prov.errors import UserError
from kimi_prov.facts import document as facts
from kimi_prov.facts import recording
from kimi_prov.facts.host import read_host
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings import parsing
from kimi_prov.show.report import check, prices
from kimi_prov.show.report.cost import Use
from kimi_prov.show.report.writers import find_writer

RECORDED = Path(__file__).parents[2] / "data" / "recordings" / "h200-x8"


@cache
def whole() -> dict[str, Any]:
    return recording.read_recording(RECORDED)


def judged(content: bytes) -> dict[str, Any] | None:
    """The document in a file with this content, or None where it was refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "facts.json"
        path.write_bytes(content)
        return read_or_refused(facts.read_facts, path)


def test_a_recording_satisfies_the_schema() -> None:
    assert judged(json.dumps(whole()).encode()) == whole()


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["0-99999999999", "9", "\ud800", "-1", "0,"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    rows = node.items() if isinstance(node, dict) else enumerate(node[:1])
    for key, value in rows:
        inner = isinstance(value, (dict, list))
        found += places(value, (*path, key)) if inner else [(*path, key)]
    return found


PLACES = places(whole())


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3), st.booleans())
@example([(("cpu", "online"), "0-99999999999")], False)
@example([(("memory", "total_bytes"), 10**4000)], False)
@example([(("host", "os", "pretty"), "\ud800")], False)
@example([(("schema",), {"\n": 1e19})], False)
def test_no_changed_facts_end_in_a_traceback(changes: Any, drop: bool) -> None:
    document = copy.deepcopy(whole())
    for path, value in changes:
        node = document
        for key in path[:-1]:
            inner = node.get(key) if isinstance(node, dict) else None
            if isinstance(node, list) and isinstance(key, int) and key < len(node):
                inner = node[key]
            if not isinstance(inner, (dict, list)):
                break
            node = inner  # type: ignore[assignment]
        else:
            if isinstance(node, dict) and drop:
                node.pop(path[-1], None)
            elif isinstance(node, dict):
                node[path[-1]] = value
    found = judged(json.dumps(document).encode())
    if found is not None:
        read_host(found)


@settings(max_examples=100)
@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b"1" * 10_000)
@example(b"\xff\xfe{}")
def test_no_other_file_ends_in_a_traceback(content: bytes) -> None:
    assert judged(content) is None


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("memory", "total_bytes"), "much", "memory.total_bytes"),
        (("gpus", 3, "memory_bytes"), -1, "gpus[3].memory_bytes"),
        (("nvidia", "driver_loaded"), 580, "nvidia.driver_loaded"),
        (("cpu", "online"), "all", "cpu.online"),
    ],
)
def test_the_key_is_named(path: tuple[Any, ...], value: Any, says: str, tmp_path: Path) -> None:
    document: Any = copy.deepcopy(whole())
    node = document
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    file = tmp_path / "facts.json"
    file.write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"facts\.json") as caught:
        facts.read_facts(file)
    assert says in str(caught.value)


LIKE: dict[type, list[Any]] = {
    bool: [None, True, False],
    int: [None, 0, 1, 3, 7, 10**6, 10**18],
    float: [None, 0.5, 0, 10**9],
    str: [None, "", "9", "0-3", "5-1", "8.0", "amd"],
    list: [[]],
    dict: [{}],
    type(None): [None, 1, "1", True],
}


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.integers(0, 6)), min_size=1, max_size=3))
@example([(("gpus", 0, "memory_bytes"), 2)])
@example([(("gpus", 0, "pcie", "gen_card"), 5)])
@example([(("numa", "nodes"), 0), (("cpu", "online"), 0)])
def test_odd_facts_are_judged_and_shown(changes: Any) -> None:
    """What a machine may say, however odd, gets a plan and a report."""
    document: Any = copy.deepcopy(whole())
    for path, choice in changes:
        node = document
        for key in path[:-1]:
            known = isinstance(node, dict) and key in node
            known = known or (isinstance(node, list) and len(node) > int(key))
            node = node[key] if known else {}
        if isinstance(node, dict) and path[-1] in node:
            values = LIKE[type(node[path[-1]])]
            node[path[-1]] = values[choice % len(values)]
    found = judged(json.dumps(document).encode())
    if found is None:
        return
    catalogue = loader.load_catalogue()
    plan = make_plan(
        found, parsing.parse_settings({"kimi_model": "kimi-k2.5"}, host="h"), catalogue
    )
    target = check.build_target("h", found, plan, Use(), prices.find_prices(found, catalogue))
    assert find_writer("text")(check.build_document([target]))
