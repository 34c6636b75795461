"""What engines and GPUs are at, from what they told."""

from __future__ import annotations

import pytest

from kimi_prov.on_host.activity import gpus, sample

VLLM = 'vllm:generation_tokens_total{{model_name="k"}} {out}\nvllm:prompt_tokens_total {prompt}\n'
SGLANG = (
    "sglang:generation_tokens_total {out}\nsglang:prompt_tokens_total {prompt}\n"
    "sglang:gen_throughput {now}\n"
)


def test_tokens_a_second_are_what_came_between_two_readings() -> None:
    first, second = VLLM.format(out=100, prompt=7), VLLM.format(out=150, prompt=1007)
    assert sample.rates(first, second, 2.0) == {"decode_tok_s": 25.0, "prefill_tok_s": 500.0}


def test_an_engine_that_was_started_between_them_tells_nothing() -> None:
    first, second = VLLM.format(out=100, prompt=7), VLLM.format(out=1, prompt=1)
    assert sample.rates(first, second, 2.0) == {"decode_tok_s": None, "prefill_tok_s": None}
    assert sample.rates("", second, 2.0) == {"decode_tok_s": None, "prefill_tok_s": None}


def test_sglang_counts_at_the_end_of_a_request_and_tells_its_speed_meanwhile() -> None:
    first = SGLANG.format(out=100, prompt=7, now=11.5)
    assert sample.rates(first, first, 1.0) == {"decode_tok_s": 11.5, "prefill_tok_s": 0.0}


# As nvidia-smi 580 printed it of a machine with two H200, but for what the second is slowed by.
TWO = (
    "0, NVIDIA H200, 97, 61, 131072, 143771, 612.34, 700.00, 61, 72, 1755, 1980, 0, "
    "0x0000000000000004\n"
    "1, NVIDIA H200, 0, 0, 0, 143771, 76.91, 700.00, 34, [N/A], 345, 1980, [N/A], "
    "0x0000000000000001\n"
)


def test_gpus_by_the_query() -> None:
    first, second = gpus.parse(TWO)
    assert first["busy_share"] == pytest.approx(0.97)
    assert first["memory_used_bytes"] == 131072 << 20
    assert first["power_w"] == pytest.approx(612.34)
    assert first["throttled"] == ["power limit"]
    # Idle is no reason that anybody should look at.
    assert second["throttled"] == []
    assert second["memory_temperature_c"] is None
    assert second["ecc_uncorrected"] is None


def test_what_is_no_row_is_left_out() -> None:
    assert gpus.parse("No devices were found\n") == []
