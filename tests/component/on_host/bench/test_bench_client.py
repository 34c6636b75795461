"""The bench on the machine, with a client in the engine's place that answers at once."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from systemd_stand_in import systemd_stand_in

from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.bench import client as bench_client
from kimi_prov.on_host.bench import load as bench_load
from kimi_prov.on_host.bench import results as bench_results
from kimi_prov.on_host.bench import run as bench
from kimi_prov.on_host.bench.environment import Engine
from kimi_prov.on_host.bench.load import Load
from kimi_prov.packaging.zipapp import build_zipapp

if TYPE_CHECKING:
    from pathlib import Path

KEY = "sk-kimi-canary-of-the-bench"
CLIENT = """
import json, os, sys
argv = sys.argv[1:]
value = {a: b for a, b in zip(argv, argv[1:])}
folder, name = value["--result-dir"], value["--result-filename"]
total = int(value["--num-prompts"])
for trust in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
    assert open(os.environ[trust]).read() == "the certificate"
print("a table that is not the answer")
for done in range(total + 1):
    sys.stderr.write("\\r 50%%|##  | %d/%d [00:01<00:01]" % (done, total))
with open(os.environ["SEEN"], "a") as stream:
    stream.write(json.dumps({"argv": argv, "key": os.environ.get("OPENAI_API_KEY")}) + "\\n")
json.dump({"completed": total, "duration": 2.0, "total_input_tokens": 256 * total,
           "total_output_tokens": 64 * total, "output_throughput": 64.0 * total / 2,
           "median_ttft_ms": 50.0, "p99_ttft_ms": 60.0, "median_tpot_ms": 5.0,
           "p99_tpot_ms": float("nan"), "failed": 0,
           "median_itl_ms": 4.0, "p99_itl_ms": 9.0}, open(os.path.join(folder, name), "w"))
"""
BROKEN = "import sys\nprint('RuntimeError: no such flag', file=sys.stderr)\nsys.exit(2)\n"


def plan_of(tmp_path: Path, client: str, concurrency: int = 5) -> dict[str, Any]:
    """A plan whose engine's environment is this Python with a bench client of ours."""
    place = tmp_path / "site" / "vllm" / "entrypoints" / "cli"
    place.mkdir(parents=True)
    (place / "main.py").write_text(client)
    env = tmp_path / "env" / "bin"
    env.mkdir(parents=True)
    (env / "python").symlink_to(sys.executable)
    environment = {"PYTHONPATH": str(tmp_path / "site"), "SEEN": str(tmp_path / "seen")}
    return {
        "engine": {"name": "vllm", "env_dir": str(tmp_path / "env")},
        "instances": [{"env": environment, "argv": [], "numactl": [], "port": 9}],
        "model": {"context": 4096, "served_names": ["kimi"], "serve_dir": "/models/kimi"},
        "proxy": {"port": 8000},
        "throughput": {"concurrency": concurrency},
    }


def seed_of(argv: list[str]) -> int:
    return int(argv[argv.index("--seed") + 1])


@pytest.fixture
def engine_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archive = build_zipapp(tmp_path / "kimi-target.pyz")
    monkeypatch.setattr(layout, "ZIPAPP", str(archive))
    systemd_stand_in(tmp_path / "systemd", monkeypatch)
    return Engine


def test_every_level_is_asked_and_the_reader_sees_how_far_it_is(tmp_path, engine_of) -> None:
    plan = plan_of(tmp_path, CLIENT)
    paths = Paths(tmp_path / "root")
    paths.keys.mkdir(parents=True)
    paths.verify_key.write_text(KEY + "\n")
    paths.proxy.mkdir(parents=True)
    paths.tls_crt.write_text("the certificate")
    said: list[str] = []
    found = bench.measure_service(plan, paths, engine_of(plan), said.append, {})
    assert [level["concurrency"] for level in found["levels"]] == [1, 4, 5]
    # Nobody listens on the port of the instance, and it has no GPU.
    assert "/metrics" in found["levels"][0].pop("engine")["reason"]
    assert "no GPU" in found["levels"][0].pop("power")["reason"]
    assert found["levels"][0] == {
        "concurrency": 1,
        "rounds": 1,
        "requests": 3,
        "failed": 0,
        "left_out": 0,
        "seconds": 2.0,
        "input_tokens": 768,
        "output_tokens": 192,
        "ttft_s": {"median": 0.05, "p99": 0.06},
        "tpot_s": {"median": 0.005, "p99": None},
        "itl_s": {"median": 0.004, "p99": 0.009},
        "decode_tok_s": 200.0,
        "aggregate_tok_s": 96.0,
        "prefill_tok_s": 5120.0,
        "spread": None,
    }
    assert found["warm_up"]["requests"] == 1
    assert "4 at once: 8 of 8 requests" in said
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert [run["key"] for run in seen] == [KEY] * 4
    # Another bench asks other words: none that the engine's cache may still have.
    bench.measure_service(plan, paths, engine_of(plan), said.append, {})
    after = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()][4:]
    first, second = ([seed_of(run["argv"]) for run in runs] for runs in (seen, after))
    assert all(abs(one - other) > 1000 for one in first for other in second)
    assert KEY not in " ".join(part for run in seen for part in run["argv"])
    # Everybody may read a unit's environment and its options.
    assert KEY not in (tmp_path / "systemd" / "options").read_text()


def test_a_client_that_fails_says_why(tmp_path, engine_of) -> None:
    plan = plan_of(tmp_path, BROKEN)
    with pytest.raises(HostError, match="no such flag"):
        bench.measure_service(plan, Paths(tmp_path), engine_of(plan), lambda _: None, {})


def test_a_file_without_a_prompt_that_the_client_takes_is_told_with_its_limits(
    tmp_path, engine_of
) -> None:
    plan = plan_of(tmp_path, "print([][0])\n")
    paths = Paths(tmp_path / "root")
    for place, name in ((paths.keys, paths.verify_key), (paths.proxy, paths.tls_crt)):
        place.mkdir(parents=True)
        name.write_text("x")
    row = {"prompt": "a", "answer": "b", "image": None}
    load = {"form": "sharegpt", "prompts": 1, "warm_up": 0}
    asked = {"load": load, "prompts": [row]}
    with pytest.raises(HostError, match=r"no prompt of the file .* 4 to 1,024 tokens"):
        bench.measure_service(plan, paths, engine_of(plan), lambda _: None, asked)
    with pytest.raises(HostError, match="IndexError"):
        bench.measure_service(plan, paths, engine_of(plan), lambda _: None, {})


def test_two_levels_never_ask_the_same_prompts(tmp_path) -> None:
    runs = bench_client.list_runs(plan_of(tmp_path, CLIENT, 16), Load(), (256, 64), 7)
    seeds = [run["argv"][run["argv"].index("--seed") + 1] for run in runs]
    assert len(set(seeds)) == len(seeds) == 4


def test_ktransformers_is_asked_by_sglangs_client(tmp_path) -> None:
    plan = plan_of(tmp_path, CLIENT, 1)
    plan["engine"]["name"] = "ktransformers"
    _, run = bench_client.list_runs(plan, Load(), (256, 64), 7)
    assert run["module"] == "sglang.bench_serving"
    # The other random data set is fetched from a hub.
    assert run["argv"][run["argv"].index("--dataset-name") + 1] == "random-ids"


@pytest.mark.parametrize(
    ("concurrency", "levels"),
    [(0, [1]), (1, [1]), (2, [1, 2]), (16, [1, 4, 16]), (64, [1, 4, 16, 64]), (20, [1, 4, 16, 20])],
)
def test_levels(concurrency, levels) -> None:
    assert bench_load.list_levels(Load(), concurrency) == levels


def test_lengths_are_the_predictions_where_time_allows() -> None:
    fast = {"input_tokens": 8192, "output_tokens": 1024, "concurrency": 1}
    fast |= {"prefill_tok_s": {"expected": 7000.0}, "decode_tok_s": {"expected": 100.0}}
    assert bench_load.choose_lengths(Load(), fast, 65536) == (8192, 1024)
    slow = {**fast, "prefill_tok_s": {"expected": 50.0}, "decode_tok_s": {"expected": 5.0}}
    asked, answered = bench_load.choose_lengths(Load(), slow, 65536)
    assert asked / 50 + answered / 5 < 100
    assert bench_load.choose_lengths(Load(), {}, 256) == (128, 64)
    asked, answered = bench_load.choose_lengths(Load(), fast, 512)
    assert asked + answered < 512


@pytest.mark.parametrize("text", ["", "{cut", '{"completed": 0}'])
def test_a_result_without_an_answer_is_refused(text) -> None:
    with pytest.raises(HostError):
        bench_results.read_result({"level": 1, "requests": 3}, text)


def test_the_layer_is_the_models_own_and_run_as_the_engine_runs_it() -> None:
    config = {
        "text_config": {
            "n_routed_experts": 384,
            "num_experts_per_tok": 8,
            "hidden_size": 7168,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "first_k_dense_replace": 1,
        }
    }
    argv = ["python", "-m", "sglang.launch_server", "--kt-method", "RAWINT4", "--kt-cpuinfer", "94"]
    argv += ["--kt-threadpool-count", "2", "--kt-numa-nodes", "0", "2"]
    plan = {
        "engine": {"name": "ktransformers"},
        "instances": [{"argv": argv, "env": {}}],
        "model": {"serve_dir": "/models/kimi"},
    }
    shape, reason = bench.read_layer_shape(plan, lambda _: json.dumps(config))
    assert reason == ""
    assert shape is not None
    assert (shape["experts"], shape["threads"], shape["nodes"]) == (384, 94, [0, 2])
    # FACTS: 634.2 GB resident over 60 layers.
    assert shape["layers"] == 60
    assert shape["experts"] * shape["bytes_per_expert"] * 60 == pytest.approx(634.2e9, rel=0.001)
    plan["engine"]["name"] = "vllm"
    assert bench.read_layer_shape(plan, lambda _: "{}")[0] is None


def test_vllm_with_the_plugin_for_experts_has_kt_kernel_too() -> None:
    env = {"KIMI_EXPERTS": "kt", "KIMI_KT_THREADS": "92", "KIMI_KT_NODES": "0-1"}
    plan = {"engine": {"name": "vllm"}, "instances": [{"argv": [], "env": env}]}
    assert bench.find_kernel(plan) == ("kt", 92, [0, 1])
    env |= {"KIMI_EXPERTS": "native", "VLLM_CPU_OMP_THREADS_BIND": "2-15"}
    assert bench.find_kernel(plan) == ("native", 14, [])
    env["KIMI_EXPERTS"] = "vllm"
    assert bench.find_kernel(plan) == "the engine vllm has no kt-kernel"


@pytest.mark.parametrize("starts", [True, False])
def test_prompts_do_not_stay_where_the_unit_does_not_start_or_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, code in (("systemctl", 0), ("systemd-run", 0 if starts else 1)):
        (tools / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    kept = tmp_path / "bench-load.json"
    for name in ("LOAD", "RESULT", "PROGRESS"):
        monkeypatch.setattr(bench, name, str(tmp_path / f"bench-{name.lower()}.json"))
    monkeypatch.setattr(layout, "PLAN", str(tmp_path / "plan.json"))
    backends = {"proxy": {"port": 8000, "backends": [{"port": 9}]}}
    (tmp_path / "plan.json").write_text(json.dumps({**plan_of(tmp_path, CLIENT), **backends}))
    sent = tmp_path / "sent.json"
    load = {"requests": 1, "form": "sharegpt", "prompts": 1}
    row = {"prompt": "secret", "answer": "yes it is so", "image": None}
    sent.write_text(json.dumps({"load": load, "prompts": [row]}))
    if not starts:
        with pytest.raises(HostError, match="cannot be started"):
            bench.start(str(sent))
        assert not kept.exists()
        return
    assert bench.start(str(sent)) == load
    assert "secret" in kept.read_text()

    def stopped(*_: object) -> dict[str, Any]:
        assert not kept.exists()
        raise HostError("stopped")

    monkeypatch.setattr(bench, "_measure_all", stopped)
    assert bench.measure_all() == 1
