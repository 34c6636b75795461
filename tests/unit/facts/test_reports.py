"""What scripts and monitors print: GPUs, their memory and that of the host are told apart."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from kimi_prov.facts import recording

H100 = "NVIDIA H100 80GB HBM3"
LIST = "".join(f"GPU {n}: {H100}\n" for n in range(8))
LIST_WITH_MEMORY = "".join(f"GPU {n}: {H100}\n  Memory: 79.2 GB\n" for n in range(8))
ONE = f"GPU models and configuration: GPU 0: {H100}\nNvidia driver version: 580.95.05\n"


def read(text: str) -> Any:
    found = recording.read_text(text, "report.txt")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "count", "host_gib"),
    [
        (LIST_WITH_MEMORY, 8, None),
        (f"{LIST_WITH_MEMORY}Memory: 2.0 TB\n", 8, 2048),
        (f"{LIST}\n```\n{LIST}", 8, None),
        (ONE, 1, None),
    ],
)
def test_gpus_of_a_report_and_the_memory_of_the_host(
    text: str, count: int, host_gib: int | None
) -> None:
    found = read(text)
    assert [gpu["model"] for gpu in found["gpus"]] == [H100] * count
    assert found["memory"]["total_bytes"] == (host_gib and host_gib << 30)
    assert found["recorded"]["skipped"] == []


def test_memory_below_a_gpu_is_the_gpus() -> None:
    sizes = {gpu["memory_bytes"] for gpu in read(LIST_WITH_MEMORY)["gpus"]}
    assert [size >> 30 for size in sizes] == [79]


@pytest.mark.parametrize(
    ("document", "count", "gib"),
    [
        ([{"name": "NVIDIA H100", "memory": "80 GB"}], 1, 80),
        ([{"name": "NVIDIA H100", "memory": "81920 MiB"}], 1, 80),
        ([{"name": "NVIDIA H100", "memory": 80 << 30}], 1, 80),
        ({"gpus": [{"name": "NVIDIA H100", "memory": 81920, "count": 8}]}, 8, 80),
        ({"gpus": [{"name": "NVIDIA H100", "memory": "80GB"}], "num_gpus": 8}, 8, 80),
    ],
)
def test_units_and_counts_of_a_monitor(document: Any, count: int, gib: int) -> None:
    sizes = [gpu["memory_bytes"] for gpu in read(json.dumps(document))["gpus"]]
    assert sizes == [gib << 30] * count


@pytest.mark.parametrize(
    ("line", "gib"),
    [
        ("Memory: 12G / 2T", 2048),
        ("Memory: 64GB/2TB", 2048),
        ("Memory: 64.5 GiB / 2.0 TiB", 2048),
        ("RAM: 512GB", 512),
    ],
)
def test_the_total_of_a_summary_counts(line: str, gib: int) -> None:
    found = read(f"CPU: 2x AMD EPYC 9654 (384) @ 3.7GHz\n{line}\n{LIST}")
    assert found["memory"]["total_bytes"] == gib << 30
    assert (found["cpu"]["model"], found["cpu"]["sockets"]) == ("AMD EPYC 9654", 2)


def measure(text: str) -> float:
    start = time.process_time()
    recording.read_text(text, "report.txt")
    return time.process_time() - start


@pytest.mark.parametrize(
    ("form", "fill"),
    [
        (LIST + "{}x", "\n"),
        (LIST + "{}x", "- -\n"),
        ("CPU: AMD EPYC 9654\n{}x", "\n"),
        ("CPU: AMD EPYC 9654\n{}x", "- -\n"),
        (LIST + "GPU 9: NVIDIA{}y", " "),
        (LIST + "driver{}x", " "),
        (LIST + "NAME{}x", " "),
        (LIST + "{}", "@"),
    ],
)
def test_a_long_text_is_read_in_time_that_grows_with_it(form: str, fill: str) -> None:
    """Four times the text takes four times as long, where it took sixteen and more."""
    short, long = (measure(form.format(fill * n)) for n in (50_000, 200_000))
    assert long < 10 * short + 0.05
