"""`kt-prove`: complete a KTransformers environment and prove that it computes on this machine.

The environment's own Python runs this, as the user that serves. Its packages are imported when they
are needed, so this module itself can be read without them. Without this step the first start of the
server would assemble 1.3 GB of CUDA kernels, and a build for another CPU would crash there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import types
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.kt import layer as kt_layer

# RAWINT4 was measured at 0.0096 against its own dequantised weights.
_MAX_ERROR = 0.02
_EXPERTS, _TOP_K, _HIDDEN, _WIDTH, _TOKENS = 8, 2, 512, 256, 3


def main(argv: list[str]) -> int:
    """Check the packages' origin, assemble the kernels, compute a layer; print JSON."""
    del argv
    refuse_stock_sglang({str(d.metadata["Name"]).lower() for d in metadata.distributions()})
    directory = assemble()
    variant, kernel, error = compute_layer()
    if not error <= _MAX_ERROR:
        raise HostError(
            f"kt-kernel's {kernel} ({variant}) computes wrongly on this CPU: relative error "
            f"{error:.4f}, expected at most {_MAX_ERROR}"
        )
    result = {"variant": variant, "kernel": kernel, "error": round(error, 5), "cuda": directory}
    print(json.dumps(result), flush=True)
    # The kernel's threads may keep the interpreter from ending.
    os._exit(0)


def refuse_stock_sglang(names: set[str]) -> None:
    """Refuse a stock sglang: it has the same modules, but no kt-kernel in them."""
    if "sglang" in names or "sglang-kt" not in names:
        found = ", ".join(sorted(n for n in names if n.startswith("sglang"))) or "none"
        raise HostError(f"expected the server of KTransformers, sglang-kt, alone; found: {found}")


def assemble() -> str:
    """Assemble the CUDA kernels from their wheels; return the directory.

    SGL_KERNEL_KT_CACHE_DIR names it. The server verifies them at each start, and needs that
    directory writable with 4 GB free even then.
    """
    # Found as a package, without an import: an import would need libcuda.
    package = types.ModuleType("sgl_kernel")
    spec = importlib.util.find_spec("sgl_kernel")
    if spec is None or not spec.submodule_search_locations:
        raise HostError("expected the package sgl_kernel, of sgl-kernel-kt; it is not installed")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["sgl_kernel"] = package
    first = next(iter(import_module("sgl_kernel._payload_manifest").FILES))
    # All are assembled and verified with any.
    path = Path(import_module("sgl_kernel.payload_runtime").materialize_binary(first))
    return str(path.parents[len(Path(first).parts) - 1])


def compute_layer() -> tuple[str, str, float]:
    """Compute a small layer of INT4 experts by the build that kt-kernel picks for this CPU.

    Returns the build, the kernel's class and the relative error (Frobenius norm) against the same
    weights, dequantised, in float32.
    """
    torch = import_module("torch")
    kt_kernel = import_module("kt_kernel")
    torch.manual_seed(1)
    shape = kt_layer.Shape(_EXPERTS, _TOP_K, _HIDDEN, _WIDTH, _TOKENS)
    pool = kt_layer.start_pool(kt_kernel.kt_kernel_ext, [0], 1)
    weights = {
        name: [_quantise(torch, *size) for _ in range(_EXPERTS)]
        for name, size in shape.matrices().items()
    }
    given = {name: [made[:2] for made in every] for name, every in weights.items()}
    kernel = kt_layer.load(kt_kernel, torch, pool, shape, given)
    tokens = torch.randn(_TOKENS, _HIDDEN).to(torch.bfloat16)
    chosen = torch.stack([torch.randperm(_EXPERTS)[:_TOP_K] for _ in range(_TOKENS)])
    shares = torch.rand(_TOKENS, _TOP_K)
    out = kt_layer.compute_layer(torch, pool, kernel, tokens, chosen, shares)
    plain = {name: [made[2] for made in every] for name, every in weights.items()}
    right = kt_layer.compute_reference(torch, plain, tokens.float(), chosen, shares)
    error = float((out.float() - right).norm() / right.norm())
    return str(kt_kernel.__cpu_variant__), type(kernel).__name__, error


def _quantise(torch: Any, rows: int, columns: int) -> tuple[Any, Any, Any]:  # noqa: ANN401
    """Return packed values (two a byte, 8 is zero), scales a group, and the dequantised weights."""
    values = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
    packed = values[:, 0::2] | (values[:, 1::2] << 4)
    scales = (torch.rand(rows, columns // kt_layer.GROUP) * 0.01 + 0.001).to(torch.bfloat16)
    plain = (values.float() - 8) * scales.float().repeat_interleave(kt_layer.GROUP, dim=1)
    return packed.contiguous(), scales.contiguous(), plain
