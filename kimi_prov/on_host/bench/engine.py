"""`bench-engine memory|layer|client`: the parts of a bench that run in the engine's environment.

The engine's own Python runs this. torch, kt-kernel and the bench clients are imported when they are
needed, so this module itself can be read without them. One JSON object comes on standard input,
another goes out as the last line of standard output; progress goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import statistics
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

from kimi_prov.on_host.bench import client as bench_client
from kimi_prov.on_host.kt import layer as kt_layer

# The number after this is that of the run that the client begins, from 0.
RUN = "kimi-bench: run "
_TRUSTED = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_SECONDS = 1.0
_WARM_UP, _REPEATS = 3, 15
# Experts that have weights of their own; the kernel copies weights, so the others may share them.
_DISTINCT = 4


def measure_memory(config: dict[str, Any]) -> dict[str, Any]:
    """Read `bytes` of memory with `threads` threads repeatedly; return bytes a second."""
    torch = import_module("torch")
    torch.set_num_threads(config["threads"])
    data = torch.ones(config["bytes"] // 4, dtype=torch.float32)
    data.sum()
    started = time.monotonic()
    count = 0
    while time.monotonic() - started < _SECONDS:
        data.sum()
        count += 1
    seconds = time.monotonic() - started
    return {"bytes_per_s": round(count * data.numel() * 4 / seconds)}


def measure_layer(config: dict[str, Any]) -> dict[str, Any]:
    """Run one layer of routed experts, on INT4 weights in groups of 32, as the engine does.

    Random weights: the time does not depend on them. Milliseconds are medians.
    """
    return (_measure_own_layer if config["by"] == "native" else _measure_kt_layer)(config)


def _measure_own_layer(config: dict[str, Any]) -> dict[str, Any]:
    """Run it with the kernel of vLLM's plugin, in so many of torch's threads."""
    torch = import_module("torch")
    torch.set_num_threads(config["threads"])
    experts = import_module("kimi_kt_experts.native_experts")
    shape = _build_shape(config)
    made = [
        [_make_random_weights(torch, *size) for size in shape.matrices().values()]
        for _ in range(_DISTINCT)
    ]
    places = [
        tensor.data_ptr()
        for number in range(shape.experts)
        for part in (0, 1)
        for tensor in (matrix[part] for matrix in made[number % _DISTINCT])
    ]
    kernel = experts.library()
    began = time.monotonic()
    held = experts.Experts(kernel, places, (shape.experts, shape.hidden, shape.width))
    loaded = time.monotonic() - began
    rows = [_time_step(torch, held, config, batch) for batch in config["batches"]]
    return {"kernel": "own", "variant": kernel.build, "load_s": round(loaded, 2), "rows": rows}


def _build_shape(config: dict[str, Any]) -> kt_layer.Shape:
    return kt_layer.Shape(
        config["experts"],
        config["top_k"],
        config["hidden"],
        config["intermediate"],
        max(config["batches"]),
    )


def _measure_kt_layer(config: dict[str, Any]) -> dict[str, Any]:
    """Run it with kt-kernel, in its own pools of threads."""
    torch = import_module("torch")
    kt_kernel = import_module("kt_kernel")
    shape = _build_shape(config)
    pool = kt_layer.start_pool(kt_kernel.kt_kernel_ext, config["nodes"], config["threads"])
    weights = {}
    for name, size in shape.matrices().items():
        made = [_make_random_weights(torch, *size) for _ in range(_DISTINCT)]
        weights[name] = [made[number % _DISTINCT] for number in range(shape.experts)]
    began = time.monotonic()
    kernel = kt_layer.load(kt_kernel, torch, pool, shape, weights)
    loaded = time.monotonic() - began

    def forward(tokens: Any, chosen: Any, shares: Any) -> None:  # noqa: ANN401
        kt_layer.compute_layer(torch, pool, kernel, tokens, chosen, shares)

    rows = [_time_step(torch, forward, config, batch) for batch in config["batches"]]
    return {
        "kernel": type(kernel).__name__,
        "variant": kt_kernel.__cpu_variant__,
        "load_s": round(loaded, 2),
        "rows": rows,
    }


def _make_random_weights(torch: Any, rows: int, columns: int) -> tuple[Any, Any]:  # noqa: ANN401
    packed = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
    return packed, torch.full((rows, columns // kt_layer.GROUP), 0.01, dtype=torch.bfloat16)


def _time_step(
    torch: Any,  # noqa: ANN401
    forward: Callable[[Any, Any, Any], Any],
    config: dict[str, Any],
    batch: int,
) -> dict[str, Any]:
    """Time one decode step of `batch` tokens, each routed to its own experts."""
    experts, top_k, hidden = config["experts"], config["top_k"], config["hidden"]
    tokens = torch.randn(batch, hidden).to(torch.bfloat16)
    shares = torch.full((batch, top_k), 1.0 / top_k, dtype=torch.float32)
    taken, distinct = [], []
    for turn in range(_WARM_UP + _REPEATS):
        torch.manual_seed(turn)
        chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(batch)])
        began = time.perf_counter()
        forward(tokens, chosen, shares)
        taken.append(time.perf_counter() - began)
        distinct.append(len(set(chosen.flatten().tolist())))
    seconds = statistics.median(taken[_WARM_UP:])
    read = statistics.median(distinct[_WARM_UP:]) * config["bytes_per_expert"]
    return {
        "batch": batch,
        "seconds": round(seconds, 6),
        "bytes_per_s": round(read / seconds),
    }


def run_client(config: dict[str, Any]) -> dict[str, Any]:
    """Run the engine's bench client once for each of `runs`, in one process that imports once.

    `results` are the texts of the runs' result files. A run's arguments name its result file and
    its file of `prompts` in the current directory. `secrets` are variables for this process alone:
    every local user can read a unit's environment.
    """
    os.environ.update(config["secrets"])
    with tempfile.TemporaryDirectory(prefix="kimi-bench-") as folder:
        os.chdir(folder)
        # sglang's client has no --insecure and trusts the certificates that these name.
        Path("tls.crt").write_text(config["certificate"])
        os.environ.update(dict.fromkeys(_TRUSTED, f"{folder}/tls.crt"))
        for number, run in enumerate(config["runs"]):
            # On a line of its own, also after a partial progress bar.
            print(f"\n{RUN}{number}", file=sys.stderr, flush=True)
            if run["prompts"]:
                whole = run["module"].startswith("vllm")
                rows = bench_client.list_conversations(
                    config["prompts"], run["prompts"], whole=whole
                )
                Path(bench_client.PROMPTS).write_text(json.dumps(rows), encoding="utf-8")
            sys.argv = [run["module"], *run["argv"]]
            with contextlib.redirect_stdout(sys.stderr):
                try:
                    runpy.run_module(run["module"], run_name="__main__", alter_sys=True)
                except SystemExit as ended:
                    if ended.code not in (None, 0):
                        raise
        results = [Path(run["result"]) for run in config["runs"]]
        return {"results": [path.read_text() if path.exists() else "" for path in results]}


_PARTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "memory": measure_memory,
    "layer": measure_layer,
    "client": run_client,
}


def main(argv: list[str]) -> int:
    """Run the named part; its result is the last line of standard output."""
    found = _PARTS[argv[0]](json.load(sys.stdin))
    print(json.dumps(found), flush=True)
    sys.stderr.flush()
    # Threads of a kernel's pool may keep the interpreter from ending.
    os._exit(0)
