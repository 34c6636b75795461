"""What is told of a load while it runs: the engine's own counts, and what its GPUs draw."""

from __future__ import annotations

import pytest

from kimi_prov.on_host.bench import sampler, serving
from kimi_prov.on_host.bench.sampler import Sample
from kimi_prov.on_host.engine import metrics
from kimi_prov.on_host.engine.metrics import State


def state(running: float, hits: float | None = 0.0) -> State:
    return State(0.5, running, 0.0, 3.0, 1000.0, hits)


def test_only_what_lies_in_a_window_counts_and_counters_by_their_ends() -> None:
    samples = [
        Sample(at, at, state(running, hits), watts)
        for at, running, hits, watts in (
            (1.0, 9, 100, 900.0),  # the client prepares
            (2.0, 1, 110, 100.0),
            (3.0, 3, 130, 300.0),
            (4.5, 0, 160, 50.0),
            (6.0, 5, 200, 500.0),
            (7.5, 0, 240, 50.0),
        )
    ]
    windows = [(1.5, 3.5), (5.0, 7.0)]
    found = sampler.describe_engine(samples, windows)
    assert found["running"] == {"mean": 3.0, "max": 5.0}
    assert found["prefix_cache"]["hit_tokens"] == (160 - 100) + (240 - 160)
    power = sampler.describe_power(samples, windows, [0], 600)
    assert (power["samples"], power["watts"]) == (3, {"mean": 300.0, "max": 500.0})


def test_joules_are_of_the_time_between_looks_and_of_none_where_these_are_few() -> None:
    # The first two see idle GPUs, one right behind the other.
    looks = [(0.1, 100.0), (0.3, 100.0), (1.5, 700.0), (3.0, 700.0), (4.0, 700.0)]
    samples = [Sample(at, at, None, watts) for at, watts in looks]
    found = sampler.describe_power(samples, [(0.0, 5.0)], [0], 3000)
    assert found["joules"] == pytest.approx(100 * 0.9 + 700 * 4.1)
    assert found["tokens_per_joule"] == pytest.approx(3000 / found["joules"], abs=1e-4)
    short = sampler.describe_power(samples, [(0.0, 3.5)], [0], 3000)
    assert (short["joules"], short["tokens_per_joule"], short["samples"]) == (None, None, 4)
    assert "too short for joules" in short["reason"]


def test_a_look_that_takes_long_is_neither_before_nor_behind_what_it_overlaps() -> None:
    samples = [
        Sample(1.0, 1.1, state(0, 10.0), None),
        Sample(1.4, 2.5, state(0, 20.0), None),  # asked before the load, answered within
        Sample(3.0, 3.1, state(4, 50.0), None),
        Sample(3.9, 4.2, state(0, 90.0), None),  # asked within, answered behind
        Sample(5.0, 5.1, state(0, 95.0), None),
    ]
    found = sampler.describe_engine(samples, [(1.5, 4.0)])
    assert found["prefix_cache"]["hit_tokens"] == 95 - 10
    assert (found["samples"], found["running"]["mean"]) == (1, 4.0)


@pytest.mark.parametrize(
    ("module", "began"),
    [("vllm.entrypoints.cli.main", [3, 9]), ("sglang.bench_serving", [5, 11])],
)
def test_a_window_begins_with_the_clients_clock(
    monkeypatch: pytest.MonkeyPatch, module: str, began: list[int]
) -> None:
    lines = [
        "kimi-bench: run 0",
        "  0%|   | 0/9 [00:00<?, ?it/s]",  # it makes up prompts
        "Starting main benchmark run...",
        "Traffic request rate: inf",
        "  0%|   | 0/4 [00:00<?, ?it/s]",
        " 25%|   | 1/4 [00:00<?, ?it/s]",
    ]
    runs = [{"module": module, "round": turn, "level": 1} for turn in range(2)]
    looks: list[float] = []
    clock = [0.0]
    heard = serving.ClientOutput(lambda _: None, runs, lambda: looks.append(clock[0]))
    monkeypatch.setattr(serving.time, "monotonic", lambda: clock[0])
    for line in [*lines, lines[0].replace("0", "1"), *lines[1:]]:
        clock[0] += 1
        heard(line)
    assert heard.began == dict(enumerate(began))
    assert heard.sampled == {0: 4, 1: 4}
    # With each run as well, for what the counters were between two of them.
    assert looks == [1, began[0], 7, began[1]]


def test_what_is_not_told_is_null_with_its_reason() -> None:
    samples = [Sample(1.0, 1.0, None, None), Sample(2.0, 2.0, None, None)]
    found = sampler.describe_engine(samples, [(0.5, 2.5)])
    assert (found["running"], found["preemptions"]) == (None, None)
    assert "/metrics" in found["reason"]
    power = sampler.describe_power(samples, [(0.5, 2.5)], [], 100)
    assert (power["joules"], power["tokens_per_joule"]) == (None, None)
    assert "no GPU" in power["reason"]
    assert "does not report" in sampler.describe_power(samples, [(0.5, 2.5)], [0], 100)["reason"]
    drawn = [Sample(1.0, 1.0, None, 700.0), Sample(2.0, 2.0, None, 700.0)]
    together = sampler.describe_power(drawn, [(0.5, 2.5)], [0], 100, alone=False)
    assert (together["joules"], together["tokens_per_joule"]) == (None, None)
    assert "several hosts" in together["reason"]
    quick = [Sample(1.0, 1.0, state(0), 5.0), Sample(2.0, 2.0, state(0), 5.0)]
    assert "between two samples" in sampler.describe_engine(quick, [(1.2, 1.4)])["reason"]
    # A server that was started again counts from nothing.
    anew = [Sample(1.0, 1.0, state(0, 50.0), None), Sample(3.0, 3.0, state(0, 5.0), None)]
    assert sampler.describe_engine(anew, [(1.5, 2.5)])["prefix_cache"]["hit_tokens"] is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            (
                'vllm:kv_cache_usage_perc{engine="0",model_name="a b"} 0.25\n'
                'vllm:kv_cache_usage_perc{engine="1",model_name="a b"} 0.75\n'
                'vllm:num_requests_running{engine="0"} 2.0\n'
                'vllm:num_requests_running{engine="1"} 3\n'
                "vllm:num_requests_waiting 1.0\nvllm:num_preemptions_total 4.0\n"
                "vllm:prefix_cache_queries_total 100\nvllm:prefix_cache_hits_total 25\n"
            ),
            State(0.75, 5.0, 1.0, 4.0, 100.0, 25.0),
        ),
        (
            (
                'sglang:token_usage{tp_rank="0"} 0.5\nsglang:num_running_reqs{tp_rank="0"} 2.0\n'
                "sglang:num_queue_reqs 1.0\nsglang:prompt_tokens_total 80.0\n"
            ),
            State(0.5, 2.0, 1.0, 0.0, 80.0, 0.0),
        ),
        (
            (
                "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
                "vllm:kv_cache_usage_perc NaN\nvllm:num_preemptions_total +Inf\n"
                "vllm:prefix_cache_queries_total 1e999\n"
            ),
            State(None, 1.0, 0.0, None, None, None),
        ),
        ("vllm:num_requests_running nonsense\nhttp_requests_total 3\n", None),
    ],
)
def test_both_engines_are_read_by_one_reader(text: str, told: State | None) -> None:
    assert metrics.parse_state(text) == told
