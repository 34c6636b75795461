"""An engine's counts and its GPUs' watts, sampled while a load runs."""

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
from kimi_prov.on_host.bench import sampler
from kimi_prov.on_host.bench.environment import Engine
from kimi_prov.on_host.bench.serving import measure_service
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
        (level,) = measure_service(plan, paths, Engine(plan), lambda _: None, asked)["levels"]
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


def test_watts_of_a_gpu_that_does_not_tell_are_not_those_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf '350.5\\n[N/A]\\n'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert sampler.read_watts([0, 1]) is None
    assert sampler.read_watts([]) is None


def test_the_stand_in_counts_in_the_form_that_is_read() -> None:
    with streaming_engine.serving() as (port, _):
        found = sampler.read_engine_state({"instances": [{"port": port}]})
    assert found == State(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert json.dumps(found.__dict__)
