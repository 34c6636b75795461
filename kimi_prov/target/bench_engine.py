"""`bench-engine memory|layer|client`: the parts of a bench that run in the engine's environment.

The engine's own Python runs this, so torch, kt-kernel and the bench clients are imported by name
when they are needed; nothing of them is needed to read this module. A JSON object comes by standard
input, another goes out as the last line of standard output; progress goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import statistics
import sys
import time
from importlib import import_module
from typing import Any, Callable, Dict, List

# What follows says at which number of requests at once the client is.
LEVEL = "kimi-bench: level "
_SECONDS = 1.0
_WARM_UP, _REPEATS = 3, 15
# Experts whose weights are really made; the kernel copies, so that the others may share them.
_DISTINCT = 4
_GROUP = 32


def memory(config: Dict[str, Any]) -> Dict[str, Any]:
    """Read `bytes` of memory with `threads` threads over and over; bytes a second."""
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


def layer(config: Dict[str, Any]) -> Dict[str, Any]:
    """Run one layer of routed experts by kt-kernel, on INT4 weights in groups of 32.

    Random weights: the time does not depend on them. Milliseconds are medians.
    """
    torch = import_module("torch")
    kt_kernel = import_module("kt_kernel")
    experts, hidden, inner = config["experts"], config["hidden"], config["intermediate"]
    pool = _pool(kt_kernel.kt_kernel_ext, config)
    kept = [_expert(torch, hidden, inner) for _ in range(_DISTINCT)]
    on_gpu = torch.zeros(experts, dtype=torch.bool)
    described = kt_kernel.kt_kernel_ext.moe.MOEConfig(
        experts, config["top_k"], hidden, inner, on_gpu.data_ptr()
    )
    described.layer_idx = 0
    described.pool = pool.backend_
    described.max_len = max(config["batches"])
    described.quant_config.bits = 4
    described.quant_config.group_size = _GROUP
    described.quant_config.zero_point = False
    for name in ("gate", "up", "down"):
        packed = [kept[n % _DISTINCT][name][0].data_ptr() for n in range(experts)]
        scales = [kept[n % _DISTINCT][name][1].data_ptr() for n in range(experts)]
        setattr(described, name + "_projs", [packed])
        setattr(described, name + "_scales", [scales])
    kernel = import_module("kt_kernel.utils.amx")._select_rawint4_backend(_GROUP)(described)
    order = torch.arange(experts, dtype=torch.int64)
    began = time.monotonic()
    pool.submit(kernel.load_weights_task(order.data_ptr()))
    pool.sync()
    loaded = time.monotonic() - began
    rows = [_timed(torch, pool, kernel, config, batch) for batch in config["batches"]]
    return {
        "kernel": type(kernel).__name__,
        "variant": kt_kernel.__cpu_variant__,
        "load_s": round(loaded, 2),
        "rows": rows,
    }


def _pool(extension: Any, config: Dict[str, Any]) -> Any:  # noqa: ANN401
    """Start the kernel's threads as the engine does: shared out over its nodes."""
    nodes: List[int] = config["nodes"]
    each, more = divmod(config["threads"], len(nodes))
    wanted = extension.WorkerPoolConfig()
    wanted.subpool_count = len(nodes)
    wanted.subpool_numa_map = nodes
    wanted.subpool_thread_count = [each + (number < more) for number in range(len(nodes))]
    return extension.CPUInfer(wanted)


def _expert(torch: Any, hidden: int, inner: int) -> Dict[str, Any]:  # noqa: ANN401
    made = {}
    for name, rows, columns in (
        ("gate", inner, hidden),
        ("up", inner, hidden),
        ("down", hidden, inner),
    ):
        packed = torch.randint(-(2**31), 2**31, (rows, columns // 8), dtype=torch.int64)
        scales = torch.full((rows, columns // _GROUP), 0.01, dtype=torch.bfloat16)
        made[name] = (packed.to(torch.int32), scales)
    return made


def _timed(
    torch: Any,  # noqa: ANN401
    pool: Any,  # noqa: ANN401
    kernel: Any,  # noqa: ANN401
    config: Dict[str, Any],
    batch: int,
) -> Dict[str, Any]:
    """Time one decode step of `batch` tokens, each routed to experts of its own."""
    experts, top_k, hidden = config["experts"], config["top_k"], config["hidden"]
    size = torch.tensor([batch], dtype=torch.int32)
    tokens = torch.randn(batch, hidden).to(torch.bfloat16)
    weights = torch.full((batch, top_k), 1.0 / top_k, dtype=torch.float32)
    out = torch.empty(batch, hidden, dtype=torch.bfloat16)
    taken, distinct = [], []
    for turn in range(_WARM_UP + _REPEATS):
        torch.manual_seed(turn)
        chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(batch)])
        task = kernel.forward_task(
            size.data_ptr(),
            top_k,
            chosen.data_ptr(),
            weights.data_ptr(),
            tokens.data_ptr(),
            out.data_ptr(),
            False,
        )
        began = time.perf_counter()
        pool.submit(task)
        pool.sync()
        taken.append(time.perf_counter() - began)
        distinct.append(len(set(chosen.flatten().tolist())))
    seconds = statistics.median(taken[_WARM_UP:])
    read = statistics.median(distinct[_WARM_UP:]) * config["bytes_per_expert"]
    return {
        "batch": batch,
        "seconds": round(seconds, 6),
        "bytes_per_s": round(read / seconds),
    }


def client(config: Dict[str, Any]) -> Dict[str, Any]:
    """Run the engine's bench client once for each of `runs`, in one process that imports once."""
    for run in config["runs"]:
        # On a line of its own, also after a bar that was cut.
        print(f"\n{LEVEL}{run['level']}", file=sys.stderr, flush=True)
        sys.argv = [run["module"], *run["argv"]]
        with contextlib.redirect_stdout(sys.stderr):
            try:
                runpy.run_module(run["module"], run_name="__main__", alter_sys=True)
            except SystemExit as ended:
                if ended.code not in (None, 0):
                    raise
    return {}


_PARTS: Dict[str, Callable[[Dict[str, Any]], Dict[str, Any]]] = {
    "memory": memory,
    "layer": layer,
    "client": client,
}


def main(argv: List[str]) -> int:
    """Do the part that is named; what it measured is the last line of standard output."""
    found = _PARTS[argv[0]](json.load(sys.stdin))
    print(json.dumps(found), flush=True)
    sys.stderr.flush()
    # Threads of a kernel's pool may not let the interpreter end.
    os._exit(0)
