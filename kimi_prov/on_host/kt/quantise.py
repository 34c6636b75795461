"""`kt-quantise`: one layer of experts from a checkpoint to kt-kernel's own AMXINT4 or AMXINT8.

The engine's own Python runs this, in a process for each layer: the kernel never frees a layer's
memory. Reads a job in JSON from standard input and leaves kt-kernel's files below its `scratch`;
the last line of standard output has the relative error of the layer, in JSON.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

from kimi_prov.on_host.kt import layer

# Classes of kt_kernel.utils.amx 0.7.2 by method. They need AVX512F and BW; no GPU, no AMX.
KERNELS = {"AMXINT4": "AMXInt4_MOE", "AMXINT8": "AMXInt8_MOE"}
_MATRICES = ("gate", "up", "down")
# Tokens of the test after a layer; the kernel's buffers need a multiple of 32.
_BUFFER_TOKENS, _TOKENS = 32, 4


def compute_layer_bytes(method: str, experts: int, hidden: int, width: int, pools: int) -> int:
    """Return the bytes of one layer's result: its values, and a float32 for each row of each slice.

    As kt-kernel 0.7.2 writes them: gate and up are cut by rows, down by columns.
    """
    values = experts * 3 * hidden * width // (2 if method == "AMXINT4" else 1)
    return values + experts * 4 * (2 * width + pools * hidden)


def main(argv: list[str]) -> int:
    """Quantise the layer, then compute tokens with it and with the checkpoint's own weights."""
    del argv
    job = json.load(sys.stdin)
    torch = import_module("torch")
    kt_kernel = import_module("kt_kernel")
    shape = layer.Shape(job["experts"], job["top_k"], job["hidden"], job["width"], _BUFFER_TOKENS)
    weights = {name: stack_experts(torch, shape, name, job) for name in _MATRICES}
    pool = layer.start_pool(kt_kernel.kt_kernel_ext, job["nodes"], job["threads"])
    kernel = quantise(kt_kernel, torch, pool, shape, weights, job)
    torch.manual_seed(job["layer"])
    tokens = torch.randn(_TOKENS, shape.hidden).to(torch.bfloat16)
    chosen = torch.stack([torch.randperm(shape.experts)[: shape.top_k] for _ in range(_TOKENS)])
    shares = torch.rand(_TOKENS, shape.top_k)
    out = layer.compute_layer(torch, pool, kernel, tokens, chosen, shares)
    right = layer.compute_reference(torch, weights, tokens.float(), chosen, shares)
    error = float((out.float() - right).norm() / right.norm())
    print("\n" + json.dumps({"relative_error": round(error, 5)}), flush=True)
    # The kernel's threads may keep the interpreter from ending.
    os._exit(0)


def stack_experts(torch: Any, shape: layer.Shape, name: str, job: dict[str, Any]) -> Any:  # noqa: ANN401
    """Return one matrix of every expert as bfloat16, [experts, rows, columns]."""
    safe_open = import_module("safetensors").safe_open
    opened: dict[str, Any] = {}
    # In place: experts of one Kimi layer are 34 GB, and a second list would double that.
    whole = torch.empty((shape.experts, *shape.matrices()[name]), dtype=torch.bfloat16)

    def tensor(place: list[str]) -> Any:  # noqa: ANN401
        path, key = place
        if path not in opened:
            opened[path] = safe_open(path, framework="pt")
        return opened[path].get_tensor(key)

    for expert, places in enumerate(job["places"][name]):
        value = tensor(places["weight"])
        if places["scale"] is not None:
            value = dequantise(value, tensor(places["scale"]), job["block"])
        whole[expert].copy_(value)
    return whole


def dequantise(values: Any, scales: Any, block: list[int]) -> Any:  # noqa: ANN401
    """Multiply FP8 values by their blocks' scales, in float32."""
    rows, columns = values.shape
    every = scales.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return values.float() * every[:rows, :columns]


def quantise(
    kt_kernel: Any,  # noqa: ANN401
    torch: Any,  # noqa: ANN401
    pool: Any,  # noqa: ANN401
    shape: layer.Shape,
    weights: dict[str, Any],
    job: dict[str, Any],
) -> Any:  # noqa: ANN401
    """Make the kernel quantise and write; return it, ready to compute.

    This uses the library itself: the script of `kt quant` is not in the wheel of 0.7.2, and
    KTMoEWrapper pins memory, which needs CUDA.
    """
    config = layer.build_configuration(kt_kernel, torch, pool, shape, job["layer"])
    config.save, config.load, config.path = True, False, job["scratch"]
    for name, whole in weights.items():
        setattr(config, name + "_proj", whole.data_ptr())
    kernel = getattr(import_module("kt_kernel.utils.amx"), KERNELS[job["method"]])(config)
    order = torch.arange(shape.experts, dtype=torch.int64)
    pool.submit(kernel.load_weights_task(order.data_ptr()))
    pool.sync()
    return kernel
