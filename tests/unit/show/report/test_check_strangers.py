"""Whatever stands in a quote or a facts file, a report stays whole and harmless."""

from __future__ import annotations

import copy
import re

from check_inputs import document, read
from hypothesis import given, settings
from hypothesis import strategies as some

from kimi_prov.show.report import check
from kimi_prov.show.report.writers import find_writer

BASE = document()["targets"]
# Half characters too: JSON can name them.
WORDS = some.text(some.characters(exclude_categories=[]), max_size=40)
AMOUNTS = some.one_of(some.none(), some.floats(1e-6, 1e9))
SPANS = some.fixed_dictionaries({"low": AMOUNTS, "expected": AMOUNTS, "high": AMOUNTS})


@some.composite
def targets(draw):
    found = copy.deepcopy(draw(some.sampled_from(BASE)))
    found["name"] = draw(WORDS)
    for row in found["findings"]:
        row |= {key: draw(WORDS) for key in ("title", "observed", "required", "fix", "source")}
    for key in ("decode_tok_s", "aggregate_tok_s", "prefill_tok_s", "load_s"):
        found["plan"]["throughput"][key] = draw(SPANS)
    found["plan"]["model"]["name"] = draw(WORDS)
    found["plan"]["memory"]["kv_tokens_max"] = draw(some.integers(0, 1 << 40))
    found["plan"]["memory"]["host_ram_required_bytes"] = draw(some.integers(0, 1 << 50))
    found["facts"]["cpu"]["model"] = draw(WORDS)
    found["facts"]["gpus"] = [gpu | {"model": draw(WORDS)} for gpu in found["facts"]["gpus"]]
    found["assumptions"] = [{key: draw(WORDS) for key in ("what", "value", "source")}]
    return found


@settings(max_examples=12)
@given(some.lists(targets(), min_size=1, max_size=3))
def test_every_form_of_any_document_is_whole(found: list[dict[str, object]]) -> None:
    report = check.build_document(found)
    reader = read(find_writer("html")(report))
    assert not {"script", "img", "iframe"} & {tag for tag, _ in reader.tags}
    for form in ("text", "markdown"):
        page = find_writer(form)(report)
        assert page.encode()
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page)
    for line in find_writer("markdown")(report).splitlines():
        assert not re.search(r"(?<!\\)<", line)
