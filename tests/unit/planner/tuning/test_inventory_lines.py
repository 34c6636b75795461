"""The lines that a tune writes."""

from __future__ import annotations

import pytest
import yaml

from kimi_prov.errors import UserError
from kimi_prov.planner.tuning.inventory_lines import add_lines, build_lines


def test_lines_have_what_was_measured_above_them_and_are_yaml() -> None:
    flags = {"max-num-batched-tokens": 4096, "enable-chunked-prefill": False}
    lines = build_lines(
        {"concurrency": 16, "engine_args": flags, "kv_dtype": "fp8"}, ["a tune\nof today"]
    )
    assert lines.startswith("# a tune")
    assert "\nof today" not in lines
    assert yaml.safe_load(lines) == {
        "kimi_concurrency": 16,
        "kimi_engine_args": flags,
        "kimi_kv_dtype": "fp8",
    }


def test_a_file_keeps_every_byte_and_gets_the_lines_at_its_end() -> None:
    before = "---\n# mine\nkimi_port: 8000"
    after = add_lines(before, build_lines({"threads": 4}, ["note"]), "host_vars/a.yml")
    assert after.startswith(before)
    assert yaml.safe_load(after) == {"kimi_port": 8000, "kimi_threads": 4}
    assert yaml.safe_load(add_lines("", "kimi_threads: 4\n", "x")) == {"kimi_threads": 4}


def test_a_file_that_sets_the_variable_is_left_alone() -> None:
    with pytest.raises(UserError, match="kimi_threads already") as raised:
        add_lines("kimi_threads: 2\n", "kimi_threads: 4\n", "host_vars/a.yml")
    assert "kimi_threads: 4" in str(raised.value.fix)
