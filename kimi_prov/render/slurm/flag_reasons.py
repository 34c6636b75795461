"""A plan's command line in bash: one flag a line, each with its reason.

Decides: jobs for a SLURM cluster (reasons of the flags).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract import paths
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.render import planned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.contract.documents.plan import MachinePlan

# In a job this variable stands for the folder that the plan calls /srv/kimi.
ROOT = '"$KIMI_ROOT"'
_ROOT_PATTERN = re.compile(re.escape(paths.ROOT) + r"(?=/|$)")
_FLAGS = {
    "model": "the weights, as the job jobs/weights.sbatch leaves them",
    "served-model-name": "names by which clients ask for the model",
    "max-num-batched-tokens": "tokens of one step: more of them let answers wait for prompts",
    "enable-chunked-prefill": "a long prompt does not stop the answers of others",
    "enable-prefix-caching": "what prompts begin alike is computed once",
    "enable-expert-parallel": "each GPU holds whole experts",
    "decode-context-parallel-size": "the cache is spread over GPUs, not copied to each",
    "data-parallel-size": "copies of attention that share the experts",
    "mm-encoder-tp-mode": "the encoder of images is small: each GPU has it whole",
    "trust-remote-code": "the model's own code is in its repository",
    "enable-auto-tool-choice": "tools are called when the model wants to",
    "tool-call-parser": "reads the model's own marks of a call",
    "reasoning-parser": "keeps reasoning apart from the answer",
    "enforce-eager": "compiling takes minutes at each start on processors and gains nothing",
    "moe-backend": "kernels that lie in the wheel: others are compiled at the start",
    "numa-bind": "each worker runs on the NUMA node of its GPU",
    "numa-bind-nodes": "the NUMA node of each GPU",
    "attention-backend": "the one that compiles nothing at the start",
    "speculative-config": "a draft guesses tokens that the model verifies",
    "distributed-executor-backend": "vLLM's own way over nodes, without Ray",
    "shutdown-timeout": "seconds that answers may take to end after SIGTERM",
    "kt-weight-path": "the experts, which kt-kernel copies into memory of its own",
    "kt-method": "how kt-kernel computes them: in the format of the files",
    "kt-cpuinfer": "threads that compute experts, each on a core; fewer where the job has fewer",
    "kt-threadpool-count": "a pool of threads and memory on each NUMA node",
    "kt-numa-nodes": "the NUMA nodes of the pools",
    "kt-num-gpu-experts": "experts of each layer that the GPUs' memory holds too",
    "mem-fraction-static": "share of a GPU for weights and cache",
    "context-length": "tokens of one conversation",
    "max-total-tokens": "tokens that the cache holds in all",
    "max-running-requests": "requests at once: kimi_concurrency",
    "chunked-prefill-size": "tokens of one step: more of them let answers wait for prompts",
    "disable-shared-experts-fusion": "experts of kt-kernel and of the GPU are apart",
    "watchdog-timeout": "seconds of a step: a long prompt on few cores takes minutes",
    "enable-metrics": "what the job reads to see whether somebody asks",
    "dtype": "the format of the weights that are not quantised",
}
# Variables that list folders: the job's modules have theirs in them.
_SEARCHED = ("PATH", "LD_LIBRARY_PATH")
_ENVIRONMENT = {
    "DO_NOT_TRACK": "nothing is reported to anybody",
    "VLLM_NO_USAGE_STATS": "nothing is reported to anybody",
    "HF_HUB_OFFLINE": "the weights are there: nothing is asked of the hub",
    "HF_HOME": "caches lie on the shared file system, for a home may be full",
    "XDG_CACHE_HOME": "caches lie on the shared file system, for a home may be full",
    "TORCHINDUCTOR_CACHE_DIR": "what is compiled is kept for the next start",
    "VLLM_CACHE_ROOT": "what is compiled is kept for the next start",
    "VLLM_TUNED_CONFIG_FOLDER": "where jobs/tune.sbatch puts its tables",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "NVLink multicast fails where the fabric is shared out",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "it would compile in the middle of a request",
    "VLLM_USE_DEEP_GEMM": "it would compile in the middle of a request",
    "VLLM_USE_FLASHINFER_SAMPLER": "it would compile in the middle of a request",
    "VLLM_CPU_KVCACHE_SPACE": "GiB of the cache: by itself the engine takes most of the memory",
    "VLLM_CPU_OMP_THREADS_BIND": "processors as planned; the job takes its own where they differ",
    "TORCHDYNAMO_DISABLE": "nothing is compiled",
    "PATH": "the engine's own programs come first: it compiles by ninja and nvcc",
    "LD_LIBRARY_PATH": "the libraries of that compiler come first",
    "SGLANG_APPLY_CONFIG_BACKUP": "the model's own configuration, not that of another model",
    "SGL_KERNEL_KT_CACHE_DIR": "kernels for GPUs, put together at the first start",
    "CUDA_HOME": "a compiler, assembled from wheels",
}
_REQUESTED = "from kimi_engine_args"


@dataclass(frozen=True)
class Line:
    """One flag or variable in bash, and why it is there."""

    text: str
    reason: str


def quote_word(text: str) -> str:
    """Return a quoted word of bash; paths below /srv/kimi become paths below $KIMI_ROOT."""
    parts = [shlex.quote(part) if part else "" for part in _ROOT_PATTERN.split(text)]
    return ROOT.join(parts) or "''"


def explain_arguments(plan: MachinePlan, requested: Iterable[str]) -> list[Line]:
    """Give the engine's arguments, without those that the job finds out when it runs.

    `requested`: flags of kimi_engine_args.
    """
    argv = plan["instances"][0]["argv"]
    rows: list[list[str]] = []
    for word in argv[argv.index("-m") + 2 :]:
        if word.startswith("--"):
            rows.append([word])
        else:
            rows[-1].append(word)
    reasons = {**_FLAGS, **_explain_figures(plan)}
    requested_flags = set(requested)
    lines = []
    for flag, *values in rows:
        name = flag.removeprefix("--")
        if name not in planned.OF_THE_RUN:
            reason = (
                _REQUESTED if name in requested_flags else reasons.get(name, "chosen by the plan")
            )
            lines.append(Line(" ".join([flag, *map(quote_word, values)]), reason))
    return lines


def explain_environment(plan: MachinePlan) -> list[Line]:
    """Give the engine's environment, without what the job finds out when it runs."""
    return [
        Line(
            f"export {name}={_quote_value(name, value)}",
            _ENVIRONMENT.get(name, "chosen by the plan"),
        )
        for name, value in plan["instances"][0]["env"].items()
        if name not in planned.ENVIRONMENT_OF_THE_RUN
    ]


def _quote_value(name: str, value: str) -> str:
    """Return a variable's value in bash; where it lists folders, the job's own stay behind ours."""
    if name not in _SEARCHED:
        return quote_word(value)
    own = [part for part in value.split(":") if part.startswith(f"{paths.ROOT}/")]
    return f"{quote_word(':'.join(own))}${{{name}:+:${name}}}"


def _explain_figures(plan: MachinePlan) -> dict[str, str]:
    """Give the reasons that hold figures of the plan."""
    model, memory, parallel = plan["model"], plan["memory"], plan["parallel"]
    reasons = {
        "max-model-len": f"tokens of one conversation; the cache holds {memory['kv_tokens_max']:,} "
        f"in all (the model allows {model['context_max']:,})",
        "max-num-seqs": "requests at once: kimi_concurrency"
        if parallel["data"] == 1
        else "requests at once of each data-parallel engine: up to twice its share of all",
        "kv-cache-dtype": "half of the cache's memory: bf16 would not hold the context",
    }
    if memory["weights_bytes_per_gpu"]:
        weights, cache = memory["weights_bytes_per_gpu"], memory["kv_available_bytes_per_gpu"]
        reasons |= {
            "tensor-parallel-size": f"{parallel['tensor']} GPUs of a node share each layer: "
            f"{format_bytes(weights)} of weights on each",
            "pipeline-parallel-size": f"{parallel['pipeline']} stages of layers: little goes "
            "between nodes",
            "gpu-memory-utilization": f"share of {format_bytes(memory['gpu_bytes'])}; "
            f"{format_bytes(cache)} of it are left for the cache (estimated)",
        }
    else:
        reasons["tensor-parallel-size"] = "one part of each layer on each node"
    return reasons
