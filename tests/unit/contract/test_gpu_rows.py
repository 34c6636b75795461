"""A GPU's name and memory are written under both keys, and read from facts of any version."""

from __future__ import annotations

from kimi_prov.contract import gpu_rows

GIB = 1 << 30


def test_a_row_has_memory_and_name_under_both_keys() -> None:
    row = gpu_rows.make_gpu_row(0, "nvidia", "H200 SXM", 141 * GIB)
    assert row["memory_bytes"] == row["memory_total_bytes"] == 141 * GIB
    assert row["model"] == row["name_raw"] == "H200 SXM"


def test_the_words_of_the_source_stay_beside_the_name() -> None:
    row = gpu_rows.make_gpu_row(0, "nvidia", "H200 SXM", 141 * GIB, "h200")
    assert gpu_rows.get_gpu_name(row) == "H200 SXM"
    assert gpu_rows.list_gpu_names(row) == ["H200 SXM", "h200"]


def test_facts_of_the_first_version_are_read() -> None:
    row = gpu_rows.make_gpu_row(0, "nvidia", "H200 SXM", 141 * GIB)
    del row["memory_bytes"], row["model"]
    assert gpu_rows.get_gpu_memory(row) == 141 * GIB
    assert gpu_rows.get_gpu_name(row) == "H200 SXM"
