"""The /metrics of each pinned engine, from the engine's own code.

vLLM is asked for what its server would show with the lab's tiny model (its configuration and its
logger of metrics, without loading weights); sglang-kt's collectors are made and fed as its
scheduler and its tokenizer manager feed them. Names, kinds and labels are the engines' own.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import engine_environment

from kimi_prov.lab import model

if TYPE_CHECKING:
    from pathlib import Path

VLLM = ("0.19.1", "0.25.1", "0.32.0")
SGLANG = "sglang-kt-0.7.2"
_BEGIN = "---- metrics ----"
_VLLM = """
import sys
import prometheus_client
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.metrics.loggers import PrometheusStatLogger
args = AsyncEngineArgs(model=sys.argv[1], served_model_name="kimi", max_model_len=512)
PrometheusStatLogger(args.create_engine_config(), [0])
"""
# What is compiled, or wants a GPU, is a stand-in; the module of the metrics is not.
_SGLANG = """
import sglang_without_gpus
import prometheus_client
from sglang.srt.observability import metrics_collector as own
from sglang.srt.server_args import prepare_server_args
server_args = prepare_server_args(["--model-path", "dummy", "--enable-metrics"])
labels = {"model_name": "kimi", "engine_type": "unified", "tp_rank": 0, "pp_rank": 0,
    "moe_ep_rank": 0}
scheduler = own.SchedulerMetricsCollector(labels, server_args=server_args)
scheduler.log_stats(own.SchedulerStats())
scheduler.increment_realtime_tokens(None, prefill_compute_tokens=5, prefill_cache_tokens=3,
    decode_tokens=2)
scheduler.increment_retracted_reqs(1, 5, 2)
scheduler.observe_queue_time(0.1)
manager = {"model_name": "kimi"}
tokenizer = own.TokenizerMetricsCollector(server_args=server_args, labels=manager)
tokenizer.observe_one_finished_request(manager, 8, 4, 3, 0.5, False, 0)
tokenizer.observe_time_to_first_token(manager, 0.2)
tokenizer.observe_inter_token_latency(manager, 0.02, 1)
"""
_SHOW = f"""
print("{_BEGIN}")
print(prometheus_client.generate_latest().decode(), end="")
"""


def of_vllm(version: str, folder: Path) -> str:
    """The text of a version of vLLM."""
    python = engine_environment.environment(version) / "bin" / "python"
    tiny = str(model.make_model(folder / "tiny"))
    return _run(python, _VLLM, tiny, env={"VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"})


def of_sglang() -> str:
    """The text of sglang-kt."""
    python, path = engine_environment.sglang()
    return _run(python, _SGLANG, env={"PYTHONPATH": path})


def _run(python: Path, code: str, *words: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [python, "-c", code + _SHOW, *words],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/root", **env},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.partition(f"{_BEGIN}\n")[2]


def families(text: str) -> dict[str, str]:
    """The kind of each metric family, `_created` gauges of prometheus_client left out."""
    found = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    return {name: kind for name, kind in found.items() if not name.endswith("_created")}


def names(text: str) -> set[str]:
    """Every name by which a query can ask for a series of the families of this text."""
    ends = {
        "histogram": ("_bucket", "_sum", "_count"),
        "summary": ("", "_sum", "_count"),
    }
    return {
        f"{name}{end}" for name, kind in families(text).items() for end in ends.get(kind, ("",))
    }
