"""What engines and GPUs are at, from what they told."""

from __future__ import annotations

import pytest
from gpu_answers import gpu_answer

from kimi_prov.on_host.probe import gpu_load
from kimi_prov.on_host.status import gpus, sample

VLLM = 'vllm:generation_tokens_total{{model_name="k"}} {out}\nvllm:prompt_tokens_total {prompt}\n'
SGLANG = (
    "sglang:generation_tokens_total {out}\nsglang:prompt_tokens_total {prompt}\n"
    "sglang:gen_throughput {now}\n"
)


def test_tokens_a_second_are_what_came_between_two_readings() -> None:
    first, second = VLLM.format(out=100, prompt=7), VLLM.format(out=150, prompt=1007)
    assert sample.compute_rates(first, second, 2.0) == {
        "decode_tok_s": 25.0,
        "prefill_tok_s": 500.0,
    }


def test_an_engine_that_was_started_between_them_tells_nothing() -> None:
    first, second = VLLM.format(out=100, prompt=7), VLLM.format(out=1, prompt=1)
    assert sample.compute_rates(first, second, 2.0) == {"decode_tok_s": None, "prefill_tok_s": None}
    assert sample.compute_rates("", second, 2.0) == {"decode_tok_s": None, "prefill_tok_s": None}


def test_sglang_counts_at_the_end_of_a_request_and_tells_its_speed_meanwhile() -> None:
    first = SGLANG.format(out=100, prompt=7, now=11.5)
    assert sample.compute_rates(first, first, 1.0) == {"decode_tok_s": 11.5, "prefill_tok_s": 0.0}


# In the form of the recorded one; the figures of both are made up.
TWO = (
    "0, NVIDIA H200, 97, 61, 131072, 143771, 612.34, 700.00, 700.00, 61, 72, 1755, 1980, 0, 3, 4, "
    "0, 0, No, No, 16, 16, 0x0000000000000004\n"
    "1, NVIDIA H200, 0, 0, 0, 143771, 76.91, 700.00, 650.00, 34, [N/A], 345, 1980, [N/A], 0, 0, "
    "[N/A], [N/A], [N/A], [N/A], [N/A], [N/A], 0x0000000000000001\n"
)


def test_gpus_by_the_query() -> None:
    first, second = map(gpus.build_row, gpu_load.parse(TWO))
    assert first["busy_share"] == pytest.approx(0.97)
    assert first["memory_used_bytes"] == 131072 << 20
    assert first["power_w"] == pytest.approx(612.34)
    assert first["throttled"] == ["power limit"]
    # Idle is no reason that anybody should look at.
    assert second["throttled"] == []
    assert second["memory_temperature_c"] is None
    assert second["ecc_uncorrected"] is None
    # What the owner set, and errors since the driver was loaded: metrics show the other two.
    assert (second["power_limit_w"], first["ecc_uncorrected"]) == (700.0, 0)


def test_a_real_gpu_that_has_nothing_to_do() -> None:
    found = gpus.build_row(*gpu_load.parse(gpu_answer()))
    assert found["name"] == "NVIDIA H100 80GB HBM3"
    assert found["busy_share"] == 0.0
    assert found["memory_total_bytes"] == 81559 << 20
    assert found["power_w"] == pytest.approx(70.04)
    assert (found["temperature_c"], found["memory_temperature_c"]) == (35.0, 37.0)
    assert (found["clock_mhz"], found["clock_max_mhz"]) == (345.0, 1980.0)
    assert found["ecc_uncorrected"] == 0
    assert found["throttled"] == []
