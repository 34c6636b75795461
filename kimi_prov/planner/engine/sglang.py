"""The command line of KTransformers: sglang's server with kt-kernel's experts in host memory.

Decides: flags and environment of an engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths
from kimi_prov.on_host.kt import quantise
from kimi_prov.planner.settings.flag_names import KT, SGLANG_KT, parse_share

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Model
    from kimi_prov.planner.decisions import Budget, EngineChoice, Placement
    from kimi_prov.planner.settings.parsing import Settings

# Registry of kt 0.7.2.
_GPU_PREFILL_THRESHOLD = 400
# Methods whose experts cannot be given back to the GPU: converted experts, and INT4, of which the
# server makes parameters that need gradients, which integers cannot have: it ends at the first
# long prompt (sglang-kt 0.7.2, kt_ep_wrapper.py:2692, seen on an H200).
_NO_GPU_PREFILL = frozenset({*quantise.KERNELS, "RAWINT4"})
# A pass that takes longer ends the server; a long prompt on few cores exceeds its default of 300 s.
_WATCHDOG_S = 1800


def choose_gpu_prefill_threshold(method: object) -> int | None:
    """Return the tokens from which the GPU computes a prompt, layer by layer; None: never."""
    return None if method in _NO_GPU_PREFILL else _GPU_PREFILL_THRESHOLD


def make_flags(
    settings: Settings, model: Model, choice: EngineChoice, budget: Budget, placement: Placement
) -> dict[str, Any]:
    """Return the flags of sglang-kt 0.7.2 without those of one instance.

    The inventory decides about deferred experts, which save time but change a layer's input.
    """
    gpu = budget.gpu
    assert gpu is not None, "a hybrid without GPU"  # noqa: S101
    pools = placement.pools
    method = (choice.engine.methods or {}).get(choice.weights_format, "RAWINT4")
    start = choose_gpu_prefill_threshold(settings.engine_args.get(KT.method) or method)
    share = parse_share(settings.engine_args.get(SGLANG_KT.gpu_share))
    on_gpu = {} if start is None else {KT.prefill_from: start}
    chosen: dict[str, Any] = {
        KT.method: method,
        KT.threads: placement.pool_threads,
        KT.pools: len(pools),
        KT.nodes: list(pools),
        SGLANG_KT.gpu_experts: gpu.experts,
        **on_gpu,
        SGLANG_KT.tensor_parallel: gpu.ranks,
        SGLANG_KT.gpu_share: share or _choose_memory_fraction(budget),
        SGLANG_KT.context: budget.context,
        SGLANG_KT.cache_tokens: max(budget.kv_tokens, budget.context),
        SGLANG_KT.requests: gpu.sequences,
        SGLANG_KT.chunk: gpu.batched_tokens,
        "attention-backend": "flashinfer",
        "disable-shared-experts-fusion": True,
        "watchdog-timeout": _WATCHDOG_S,
        "trust-remote-code": True,
        "enable-metrics": True,
    }
    if budget.kv_dtype == "fp8":
        chosen[SGLANG_KT.kv_dtype] = "fp8_e4m3"
    if model.tool_call_parser:
        chosen["tool-call-parser"] = model.tool_call_parser
    if model.reasoning_parser:
        chosen["reasoning-parser"] = model.reasoning_parser
    return chosen


def make_environment(env_dir: str) -> dict[str, str]:
    """Return sglang's variables: paths of kernels and compiler, and to keep the model's config.

    `env_dir` is the engine's own directory: a link would lead to another version's one day.

    The kernels that the installation assembles are not in its environment: they are verified at
    each start, which wants the directory writable and 4 GB free there (payload_runtime.py of
    sgl_kernel 0.3.21.post2). The rest is compiled at the first start, by ninja and nvcc.
    """
    toolkit = f"{env_dir}/cuda"
    return {
        "CUDA_HOME": toolkit,
        "LD_LIBRARY_PATH": f"{toolkit}/lib64",
        "PATH": f"{env_dir}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        # Else every model of DeepSeek's architecture gets DeepSeek V4's configuration, and fails.
        "SGLANG_APPLY_CONFIG_BACKUP": "none",
        "SGL_KERNEL_KT_CACHE_DIR": paths.KT_CUDA,
    }


def _choose_memory_fraction(budget: Budget) -> float:
    """Return the share of a GPU for weights and cache, without a staged layer and kernels."""
    gpu = budget.gpu
    assert gpu is not None  # noqa: S101
    share = (gpu.weights + max(0, budget.kv_bytes)) / max(1, gpu.memory)
    return min(0.98, max(0.5, int(share * 100 + 1) / 100))
