"""What is told of a load while it runs: the engine's own counts, and what its GPUs draw."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import streaming_engine
from systemd_stand_in import systemd_stand_in

from kimi_prov.contract import paths as layout
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.bench import sampler, serving
from kimi_prov.on_host.bench.environment import Engine
from kimi_prov.on_host.bench.sampler import Sample
from kimi_prov.on_host.bench.serving import serve
from kimi_prov.on_host.engine import metrics
from kimi_prov.on_host.engine.metrics import State
from kimi_prov.packaging.zipapp import build_zipapp

RECORDED = Path(__file__).resolve().parents[3] / "data" / "recordings" / "bench-clients"
# As the real ones: it says when it begins, asks, and writes what it measured.
CLIENT = """
import json, os, sys, time, urllib.request
argv = sys.argv[1:]
value = {a: b for a, b in zip(argv, argv[1:])}
print("Starting main benchmark run...", flush=True)
began = time.monotonic()
body = json.dumps({"max_tokens": 1300}).encode()
place = os.environ["ENGINE"] + "/v1/completions"
urllib.request.urlopen(urllib.request.Request(place, body)).read()
result = json.load(open(os.environ["RECORDED"]))
result.update(completed=1, duration=time.monotonic() - began, total_output_tokens=900)
json.dump(result, open(value["--result-filename"], "w"))
"""
SMI = "#!/bin/sh\ntest \"$1 $2\" = '-i 0,1' || exit 1\nprintf '350.5\\n349.5\\n'\n"


def plan_of(tmp_path: Path, port: int) -> dict[str, object]:
    place = tmp_path / "site" / "vllm" / "entrypoints" / "cli"
    place.mkdir(parents=True)
    (place / "main.py").write_text(CLIENT)
    env = tmp_path / "env" / "bin"
    env.mkdir(parents=True)
    (env / "python").symlink_to(sys.executable)
    environment = {
        "PYTHONPATH": str(tmp_path / "site"),
        "ENGINE": f"http://127.0.0.1:{port}",
        "RECORDED": str(RECORDED / "vllm-0.32.0" / "random-1.json"),
    }
    instance = {"env": environment, "argv": [], "numactl": [], "port": port, "gpus": [0, 1]}
    return {
        "engine": {"name": "vllm", "env_dir": str(tmp_path / "env")},
        "instances": [instance],
        "model": {"context": 4096, "served_names": ["kimi"], "serve_dir": "/models/kimi"},
        "proxy": {"port": 8000},
        "throughput": {"concurrency": 1},
    }


def test_a_load_is_told_with_what_the_engine_and_the_gpus_said_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "ZIPAPP", str(build_zipapp(tmp_path / "kimi-target.pyz")))
    systemd_stand_in(tmp_path / "systemd", monkeypatch)
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    paths = Paths(tmp_path / "root")
    paths.keys.mkdir(parents=True)
    paths.verify_key.write_text("sk\n")
    paths.proxy.mkdir(parents=True)
    paths.tls_crt.write_text("the certificate")
    asked = {"load": {"requests": 1, "warm_up": 0, "rounds": 1}}
    with streaming_engine.serving() as (port, _):
        plan = plan_of(tmp_path, port)
        (level,) = serve(plan, paths, Engine(plan), lambda _: None, asked)["levels"]
    engine, power = level["engine"], level["power"]
    assert engine["samples"] >= 1
    # The first look may come before the request does.
    assert (engine["running"]["max"], engine["cache_use"]["max"]) == (1.0, 0.125)
    assert 0 < engine["running"]["mean"] <= 1
    assert engine["prefix_cache"] == {"queried_tokens": 100, "hit_tokens": 25, "hit_share": 0.25}
    assert (engine["preemptions"], engine["reason"]) == (0, None)
    assert (power["gpus"], power["watts"]) == (2, {"mean": 700.0, "max": 700.0})
    # On a busy machine the looks may be too few.
    assert power["joules"] in (None, pytest.approx(700 * level["seconds"], abs=0.1))


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
    found = sampler.engine_during(samples, windows)
    assert found["running"] == {"mean": 3.0, "max": 5.0}
    assert found["prefix_cache"]["hit_tokens"] == (160 - 100) + (240 - 160)
    power = sampler.power_during(samples, windows, [0], 600)
    assert (power["samples"], power["watts"]) == (3, {"mean": 300.0, "max": 500.0})


def test_joules_are_of_the_time_between_looks_and_of_none_where_these_are_few() -> None:
    # The first two see idle GPUs, one right behind the other.
    looks = [(0.1, 100.0), (0.3, 100.0), (1.5, 700.0), (3.0, 700.0), (4.0, 700.0)]
    samples = [Sample(at, at, None, watts) for at, watts in looks]
    found = sampler.power_during(samples, [(0.0, 5.0)], [0], 3000)
    assert found["joules"] == pytest.approx(100 * 0.9 + 700 * 4.1)
    assert found["tokens_per_joule"] == pytest.approx(3000 / found["joules"], abs=1e-4)
    short = sampler.power_during(samples, [(0.0, 3.5)], [0], 3000)
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
    found = sampler.engine_during(samples, [(1.5, 4.0)])
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
    found = sampler.engine_during(samples, [(0.5, 2.5)])
    assert (found["running"], found["preemptions"]) == (None, None)
    assert "/metrics" in found["reason"]
    power = sampler.power_during(samples, [(0.5, 2.5)], [], 100)
    assert (power["joules"], power["tokens_per_joule"]) == (None, None)
    assert "no GPU" in power["reason"]
    assert "does not tell" in sampler.power_during(samples, [(0.5, 2.5)], [0], 100)["reason"]
    drawn = [Sample(1.0, 1.0, None, 700.0), Sample(2.0, 2.0, None, 700.0)]
    together = sampler.power_during(drawn, [(0.5, 2.5)], [0], 100, alone=False)
    assert (together["joules"], together["tokens_per_joule"]) == (None, None)
    assert "several hosts" in together["reason"]
    quick = [Sample(1.0, 1.0, state(0), 5.0), Sample(2.0, 2.0, state(0), 5.0)]
    assert "between two samples" in sampler.engine_during(quick, [(1.2, 1.4)])["reason"]
    # A server that was started again counts from nothing.
    anew = [Sample(1.0, 1.0, state(0, 50.0), None), Sample(3.0, 3.0, state(0, 5.0), None)]
    assert sampler.engine_during(anew, [(1.5, 2.5)])["prefix_cache"]["hit_tokens"] is None


def test_watts_of_a_gpu_that_does_not_tell_are_not_those_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf '350.5\\n[N/A]\\n'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert sampler.watts_of([0, 1]) is None
    assert sampler.watts_of([]) is None


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
    assert metrics.state(text) == told


def test_the_stand_in_counts_in_the_form_that_is_read() -> None:
    with streaming_engine.serving() as (port, _):
        found = sampler.engine_of({"instances": [{"port": port}]})
    assert found == State(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert json.dumps(found.__dict__)
