"""The engine's command line and environment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.versions import number
from kimi_prov.contract import paths
from kimi_prov.planner.engine import expert_backend, selection, sglang
from kimi_prov.planner.engine.flag_names import VLLM, kv_dtype, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.models import Model
    from kimi_prov.planner.decisions import Budget, Choice, GpuBudget, Placement, Served
    from kimi_prov.planner.engine.flag_names import FlagNames
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

_GIB = 1 << 30
# Since then vLLM computes INT4 experts on Hopper by kernels that it builds when it starts; Marlin's
# lie in its wheel (oracle/int_wna16.py and humming/priority.py of 0.32.0; not in 0.25.1).
_HUMMING_SINCE = "0.26.0"
_BACKEND_FLAG_SINCE = "0.15.0"
# The proxy, the firewall and the key all rest on these.
_RESERVED = {
    "api-key": "kimi_api_keys_file",
    "host": "kimi_allowed_networks",
    "model": "kimi_weights_source",
    "port": "kimi_port",
    "root-path": "kimi_port",
    "served-model-name": "kimi_served_names",
    "kt-weight-path": "kimi_weights_source",
    "ssl-certfile": "kimi_tls_cert_file",
    "ssl-keyfile": "kimi_tls_key_file",
    "uds": "kimi_port",
}


def flags(
    settings: Settings,
    model: Model,
    choice: Choice,
    budget: Budget,
    place: Placement,
    capability: str | None = None,
) -> dict[str, Any]:
    """Give the flags that the plan chooses, but those of one instance.

    `capability` is the GPUs' CUDA compute capability, such as "9.0".
    """
    if choice.hybrid:
        return sglang.flags(settings, model, choice, budget, place)
    gpu = budget.gpu
    chosen: dict[str, Any] = {
        VLLM.context: budget.context,
        VLLM.requests: gpu.sequences if gpu else -(-settings.concurrency // budget.instances),
    }
    if gpu is None:
        # Compiling takes minutes at every start on CPUs and was measured to gain nothing.
        chosen |= {"dtype": "bfloat16", "enforce-eager": True}
    else:
        chosen |= _on_gpus(choice, budget, gpu)
        blackwell = choice.engine.variant == "cuda" and (capability or "").startswith("10.")
        asked = "attention-config" in settings.engine_args
        if blackwell and not asked and _since(choice, _BACKEND_FLAG_SINCE):
            # The first choice there fetches and compiles kernels (platforms/cuda.py of 0.19.1 and
            # 0.32.0; read, not run).
            chosen["attention-backend"] = "CUTLASS_MLA"
        if model.architecture.vision_params:
            chosen["mm-encoder-tp-mode"] = "data"
        if place.binds_itself:
            chosen["numa-bind"] = True
            if place.gpu_nodes:
                chosen["numa-bind-nodes"] = list(place.gpu_nodes)
    if model.trust_remote_code:
        chosen["trust-remote-code"] = True
    if model.tool_call_parser:
        chosen |= {"enable-auto-tool-choice": True, "tool-call-parser": model.tool_call_parser}
    if model.reasoning_parser:
        chosen["reasoning-parser"] = model.reasoning_parser
    return chosen


def _since(choice: Choice, version: str) -> bool:
    return number(choice.engine.version) >= number(version)


def _on_gpus(choice: Choice, budget: Budget, gpu: GpuBudget) -> dict[str, Any]:
    """Give the flags by which vLLM shares the model out over GPUs."""
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
    chosen |= {flag: ways for flag, ways in spread.items() if ways > 1}
    if choice.weights_format == "int4":
        chosen["dtype"] = "bfloat16"
        if choice.engine.variant == "cuda" and _since(choice, _HUMMING_SINCE):
            chosen["moe-backend"] = "marlin"
    if gpu.expert_parallel:
        chosen[VLLM.expert_parallel] = True
    if budget.kv_dtype == "fp8":
        chosen[VLLM.kv_dtype] = "fp8"
    return chosen


def merged(
    chosen: dict[str, Any], settings: Settings, names: FlagNames, findings: Findings
) -> dict[str, Any]:
    """Lay the inventory's flags over the plan's; each that differs is a finding.

    `names`: the engine's, for memory is counted with the flags among them.
    """
    wanted = dict(settings.engine_args)
    for flag in sorted(set(wanted) & set(_RESERVED)):
        findings.add(
            "engine_args.reserved",
            names={"flag": flag},
            observed=f"kimi_engine_args: {flag}",
            required=f"the variable {_RESERVED[flag]}",
            fix=f"remove {flag} from kimi_engine_args and use {_RESERVED[flag]}",
        )
        del wanted[flag]
    against = _contradicted(settings, names)
    for flag, value in sorted(wanted.items()):
        differs = flag in chosen and value not in (chosen[flag], str(chosen[flag]))
        if flag in against:
            variable, other = against[flag]
            findings.add(
                "engine_args.override",
                severity="warning",
                names={"flag": flag, "variable": variable},
                observed=f"kimi_engine_args: {flag}: {json.dumps(value)}; {variable}: {other}",
                required="one value: kimi_engine_args wins, and memory is counted with it",
                fix=f"remove {flag} from kimi_engine_args, or {variable}",
            )
        elif differs or (flag in chosen and flag in names.sizing):
            findings.add(
                "engine_args.override",
                severity="info",
                names={"flag": flag},
                observed=f"kimi_engine_args: {flag}: {json.dumps(value)}",
                required=f"the plan chose {json.dumps(chosen[flag])}"
                if differs
                else "memory is counted with it",
            )
    return {flag: value for flag, value in {**chosen, **wanted}.items() if value is not None}


def _contradicted(settings: Settings, names: FlagNames) -> dict[str, tuple[str, object]]:
    """Give the flags whose value a variable that was set contradicts, with that variable."""
    found: dict[str, tuple[str, object]] = {}
    args = settings.engine_args
    context, dtype = whole(args.get(names.context)), kv_dtype(args.get(names.kv_dtype))
    if not settings.auto("context") and context not in (None, settings.context):
        found[names.context] = ("kimi_context", settings.context)
    if not settings.auto("kv_dtype") and dtype not in (None, settings.kv_dtype):
        found[names.kv_dtype] = ("kimi_kv_dtype", settings.kv_dtype)
    return found


def of_instance(chosen: Mapping[str, Any], place: Placement, nodes: list[int]) -> dict[str, Any]:
    """Give the flags of one instance: the workers' nodes are those of its own GPUs."""
    flag = "numa-bind-nodes"
    planned = bool(nodes) and chosen.get(flag) == list(place.gpu_nodes)
    return {**chosen, flag: nodes} if planned else dict(chosen)


def argv(choice: Choice, chosen: dict[str, Any], served: Served, port: int) -> list[str]:
    """Give an instance's whole command line; each element is one argument."""
    serve_dir, names = served.directory, served.names
    # Not through the link: python imports by the path that it was called by.
    line = [f"{selection.env_dir(choice)}/bin/python", "-m", choice.engine.module]
    line += ["--model", serve_dir, "--served-model-name"]
    # sglang takes one name.
    line += names[:1] if choice.hybrid else names
    line += ["--host", "127.0.0.1", "--port", str(port)]
    if choice.hybrid:
        line += ["--kt-weight-path", served.experts or serve_dir]
    for flag, value in chosen.items():
        line += _arguments(flag, value)
    return line


def _arguments(flag: str, value: object) -> list[str]:
    if value is True:
        return [f"--{flag}"]
    if value is False:
        return [f"--no-{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *[str(item) for item in value]]
    return [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]


def compiles(choice: Choice, chosen: dict[str, Any]) -> bool:
    """Whether the engine compiles on the machine when it starts.

    On GPUs it does in any case: Triton has a C compiler build what loads its kernels, with Python's
    headers (triton/runtime/build.py), and KTransformers has nvcc build its own.
    """
    return choice.engine.variant != "cpu" or not chosen.get("enforce-eager")


def environment(
    choice: Choice,
    chosen: dict[str, Any],
    budget: Budget,
    placement: Placement,
    gpus: list[int],
) -> dict[str, str]:
    """Give an instance's environment: offline, silent to others, caches where `kimi` may write.

    `gpus` are the instance's own; where there is one instance it sees them all.
    """
    found = {
        "DO_NOT_TRACK": "1",
        "HF_HOME": f"{paths.CACHE}/huggingface",
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": f"{paths.CACHE}/inductor",
        "XDG_CACHE_HOME": paths.CACHE,
    }
    if choice.hybrid:
        own = sglang.environment(selection.env_dir(choice))
        return dict(sorted({**found, **own}.items()))
    if budget.instances > 1 and gpus:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in gpus)
    found |= {"VLLM_CACHE_ROOT": f"{paths.CACHE}/vllm", "VLLM_NO_USAGE_STATS": "1"}
    if choice.engine.variant == "cpu":
        # Without it the backend takes most of the machine's memory for its cache.
        found["VLLM_CPU_KVCACHE_SPACE"] = str(budget.kv_bytes // _GIB)
        found["VLLM_CPU_OMP_THREADS_BIND"] = placement.threads
        if not compiles(choice, chosen):
            # Eager or not, a request for logprobs would compile, and kill an engine without g++.
            found["TORCHDYNAMO_DISABLE"] = "1"
        if choice.experts is not None:
            found |= expert_backend.environment(choice.experts, placement)
    if choice.engine.variant == "cuda":
        # NVLink multicast fails where the host shares the fabric out.
        found["VLLM_ALLREDUCE_USE_SYMM_MEM"] = "0"
        # What these turn on has nvcc compile when it is first called, in the middle of a start or
        # of a request, and no fallback where there is none (vLLM 0.32.0: topk_topp_sampler.py,
        # flashinfer_all_reduce.py, utils/deep_gemm.py).
        found |= {
            "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
            "VLLM_USE_DEEP_GEMM": "0",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
        }
        # Looked into for tables of tuned Triton kernels; there are none until somebody makes them.
        found["VLLM_TUNED_CONFIG_FOLDER"] = paths.tuned(choice.engine.version)
    return dict(sorted(found.items()))
