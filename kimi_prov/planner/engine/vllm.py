"""vLLM's own flags and environment.

Decides: flags and environment of an engine.
Applied by: roles/serve.
Held by: tests/unit/planner/engine/test_vllm.py, tests/unit/planner/engine/test_sglang.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.versions import parse_version
from kimi_prov.contract import paths
from kimi_prov.planner.decisions import GIB
from kimi_prov.planner.engine import expert_backend
from kimi_prov.planner.settings.flag_names import VLLM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.models import Model
    from kimi_prov.planner.decisions import Budget, EngineChoice, GpuBudget, Placement
    from kimi_prov.planner.settings.parsing import Settings

EAGER = "enforce-eager"
_NUMA_NODES = "numa-bind-nodes"
# From this version vLLM computes INT4 experts on Hopper by kernels that it builds at the start;
# Marlin's are in its wheel (oracle/int_wna16.py and humming/priority.py of 0.32.0; not in 0.25.1).
_HUMMING_SINCE = "0.26.0"
_BACKEND_FLAG_SINCE = "0.15.0"
# From this version FlashInfer's all-reduce is on by itself, and the engine goes on without it where
# it cannot be built (flashinfer_all_reduce.py of 0.32.0 and 0.33.0; 0.25.1 has it off).
_FLASHINFER_REDUCE_SINCE = "0.32.0"
# From here on the locks have nvcc of the same CUDA as their headers.
_OWN_NVCC_SINCE = "0.33.0"


def find_graphs_off_flag(args: Mapping[str, Any]) -> str | None:
    """Return the inventory's flag that turns CUDA graphs off; None without one."""
    if args.get(EAGER):
        return EAGER
    if str(args.get("optimization-level")) in ("0", "O0"):
        return "optimization-level 0"
    config = args.get("compilation-config")
    mode = re.search(r"cudagraph_mode\W+(NONE|0)\b", str(config), re.IGNORECASE) if config else None
    return "cudagraph_mode NONE in compilation-config" if mode else None


def make_flags(
    settings: Settings,
    model: Model,
    choice: EngineChoice,
    budget: Budget,
    placement: Placement,
    capability: str | None = None,
) -> dict[str, Any]:
    """Return vLLM's flags without those of one instance.

    `capability` is the GPUs' CUDA compute capability, such as "9.0".
    """
    gpu = budget.gpu
    chosen: dict[str, Any] = {
        VLLM.context: budget.context,
        VLLM.requests: gpu.sequences if gpu else -(-settings.concurrency // budget.instances),
    }
    if gpu is None:
        # Compiling takes minutes at every start on CPUs and was measured to gain nothing.
        chosen |= {"dtype": "bfloat16", EAGER: True}
        if settings.hosts_per_model > 1:
            # Its workers of pipeline and data parallelism fail at the first chat (0.32.0, tried).
            chosen[VLLM.tensor_parallel] = settings.hosts_per_model
    else:
        chosen |= _make_gpu_flags(choice, budget, gpu)
        blackwell = choice.engine.variant == "cuda" and (capability or "").startswith("10.")
        attention_is_set = "attention-config" in settings.engine_args
        attention_is_set = attention_is_set or bool(model.architecture.state_bytes_per_sequence)
        if blackwell and not attention_is_set and _is_at_least(choice, _BACKEND_FLAG_SINCE):
            # The engine's first choice there downloads and compiles kernels (platforms/cuda.py of
            # 0.19.1 and 0.32.0; read, not run). Kimi K3's recipe lets the engine choose, as its
            # blocks of the cache have to hold the state of its other layers as well.
            chosen["attention-backend"] = "CUTLASS_MLA"
        if model.architecture.vision_params:
            chosen["mm-encoder-tp-mode"] = "data"
        if placement.binds_itself:
            chosen["numa-bind"] = True
            if placement.gpu_nodes:
                chosen[_NUMA_NODES] = list(placement.gpu_nodes)
    if model.trust_remote_code:
        chosen["trust-remote-code"] = True
    if model.tool_call_parser:
        chosen |= {"enable-auto-tool-choice": True, "tool-call-parser": model.tool_call_parser}
    if model.reasoning_parser:
        chosen["reasoning-parser"] = model.reasoning_parser
    return chosen


def make_instance_flags(
    flags: Mapping[str, Any], placement: Placement, nodes: list[int]
) -> dict[str, Any]:
    """Return the flags of one instance: the workers' nodes are those of its own GPUs."""
    planned = bool(nodes) and flags.get(_NUMA_NODES) == list(placement.gpu_nodes)
    return {**flags, _NUMA_NODES: nodes} if planned else dict(flags)


def _is_at_least(choice: EngineChoice, version: str) -> bool:
    return parse_version(choice.engine.version) >= parse_version(version)


def _make_gpu_flags(choice: EngineChoice, budget: Budget, gpu: GpuBudget) -> dict[str, Any]:
    """Return the flags by which vLLM splits the model over GPUs."""
    chosen: dict[str, Any] = {
        VLLM.tensor_parallel: gpu.ranks,
        VLLM.gpu_share: gpu.utilization,
        VLLM.chunk: gpu.batched_tokens,
        "enable-chunked-prefill": True,
        "enable-prefix-caching": True,
    }
    spread = {
        VLLM.pipeline_parallel: gpu.pipeline,
        VLLM.data_parallel: gpu.data,
        VLLM.decode_context_parallel: gpu.decode_context,
    }
    chosen |= {flag: parts for flag, parts in spread.items() if parts > 1}
    if choice.weights_format == "int4":
        chosen["dtype"] = "bfloat16"
        if choice.engine.variant == "cuda" and _is_at_least(choice, _HUMMING_SINCE):
            chosen["moe-backend"] = "marlin"
    if gpu.expert_parallel:
        chosen[VLLM.expert_parallel] = True
    if budget.kv_dtype == "fp8":
        chosen[VLLM.kv_dtype] = "fp8"
    return chosen


def make_environment(
    choice: EngineChoice,
    flags: Mapping[str, Any],
    budget: Budget,
    placement: Placement,
    gpus: list[int],
    env_dir: str,
    capability: str | None = None,
) -> dict[str, str]:
    """Return the variables of vLLM and its plugin.

    `gpus` are the instance's own; a single instance sees all GPUs. `env_dir` is the engine's own
    directory, `capability` the GPUs' CUDA compute capability, such as "9.0".
    """
    environment = {"VLLM_CACHE_ROOT": f"{paths.CACHE}/vllm", "VLLM_NO_USAGE_STATS": "1"}
    if budget.instances > 1 and gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in gpus)
    if choice.engine.variant == "cpu":
        # Without it the backend takes most of the machine's memory for its cache.
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(budget.kv_bytes // GIB)
        environment["VLLM_CPU_OMP_THREADS_BIND"] = placement.threads
        if flags.get(EAGER):
            # Eager or not, a request for logprobs would compile, and kill an engine without g++.
            environment["TORCHDYNAMO_DISABLE"] = "1"
        if choice.experts is not None:
            environment |= expert_backend.make_environment(choice.experts, placement, choice.dense)
    if choice.engine.variant == "cuda":
        # NVLink multicast fails where the host shares the fabric between machines.
        environment["VLLM_ALLREDUCE_USE_SYMM_MEM"] = "0"
        # These features let nvcc compile at their first call, during a start or a request, without
        # a fallback if nvcc is missing (vLLM 0.32.0: topk_topp_sampler.py,
        # flashinfer_all_reduce.py, utils/deep_gemm.py).
        environment |= {
            "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
            "VLLM_USE_DEEP_GEMM": "0",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
        }
        # The folder of tables of tuned Triton kernels, which is empty until the tuner has run.
        environment["VLLM_TUNED_CONFIG_FOLDER"] = paths.build_tuned_path(choice.engine.version)
        if _has_flashinfer_reduce(choice, capability):
            environment |= _make_compiler_environment(choice, env_dir)
    return environment


def _has_flashinfer_reduce(choice: EngineChoice, capability: str | None) -> bool:
    """Whether FlashInfer's all-reduce is built, as the recipes for Blackwell have it."""
    blackwell = (capability or "").startswith("10.")
    return blackwell and choice.engine.nvcc and _is_at_least(choice, _FLASHINFER_REDUCE_SINCE)


def _make_compiler_environment(choice: EngineChoice, env_dir: str) -> dict[str, str]:
    """Return FlashInfer's variables: its all-reduce, its compiler, and where it keeps kernels.

    Building belongs to the start, which the engine itself ends after 600 s unless it is told to
    wait as long as the recipe of Kimi K3 does (core_client.py of 0.32.0 and 0.33.0).

    The lock of 0.32.0 has nvcc 13.5 beside headers of 13.0, which CCCL refuses unless it is told
    not to look. Code of both locks was compiled from the wheels, and never run.
    """
    unlike = not _is_at_least(choice, _OWN_NVCC_SINCE)
    return {
        "VLLM_ALLREDUCE_USE_FLASHINFER": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        "CUDA_HOME": f"{env_dir}/cuda",
        "FLASHINFER_WORKSPACE_BASE": paths.CACHE,
        **({"NVCC_APPEND_FLAGS": "-DCCCL_DISABLE_CTK_COMPATIBILITY_CHECK"} if unlike else {}),
        "PATH": f"{env_dir}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
