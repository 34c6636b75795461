"""Findings of `diagnose`: what it recognises in the logs and metrics of a machine that serves.

Decides: what `diagnose` recognises (titles and sources).
"""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition, Remedy, Severity

# The problem keeps the model from serving now; it was seen, but the model serves; it was over at
# the last successful start.
_STATES: tuple[Severity, ...] = ("blocker", "warning", "info")


def _define(
    identity: str,
    title: str,
    source: str,
    remedy: Remedy = "setting",
    severities: tuple[Severity, ...] = _STATES,
) -> Definition:
    return Definition(
        identity,
        title=title,
        severities=severities,
        source=source,
        remedy=remedy,
        concerns="deployment",
    )


DEFINITIONS = (
    _define(
        "diagnose.broadcast_block",
        "The engine's processes wait for one of them that does not answer",
        "github.com/vllm-project/vllm/issues/27313, 46611",
        "process",
    ),
    _define(
        "diagnose.disk_full",
        "A file system of the machine has hardly any room",
        "statvfs; the bounds of the alert KimiDiskFull",
        "depends",
        ("blocker", "warning"),
    ),
    _define(
        "diagnose.down",
        "A unit that the model needs does not run",
        "systemd, and the last line of the unit's journal that names an error",
        "depends",
        ("blocker",),
    ),
    _define(
        "diagnose.gateway_ahead",
        "A gateway will leave a machine out, or counts keys' use wrongly",
        "the certificates that the gateway pinned, and the machines' clocks; the alerts "
        "KimiGatewayCertificateExpires and KimiClocksApart",
        "depends",
        ("warning",),
    ),
    _define(
        "diagnose.gateway_machine_out",
        "A gateway leaves a machine out, while others answer",
        "HAProxy's own checks; the alert KimiGatewayMachineOut",
        "depends",
        ("warning",),
    ),
    _define(
        "diagnose.gateway_no_machine",
        "A gateway reaches no machine",
        "HAProxy's own checks; the alert KimiGatewayNoMachine",
        "depends",
        ("blocker",),
    ),
    _define(
        "diagnose.gateway_split",
        "Both gateways have the shared address",
        "the addresses of both at the same time; the alert KimiGatewaySplit",
        "depends",
        ("blocker",),
    ),
    _define(
        "diagnose.graph_capture_memory",
        "The GPUs' memory ran out while CUDA graphs were captured",
        "github.com/vllm-project/vllm/issues/39788",
    ),
    _define(
        "diagnose.gpu_lost",
        "A GPU fell off the bus",
        "the kernel's messages (NVIDIA Xid 79); github.com/NVIDIA/NVSentinel/issues/155",
        "depends",
    ),
    _define(
        "diagnose.gpu_memory",
        "The GPUs' memory ran out",
        "github.com/kvcache-ai/ktransformers/issues/1651",
    ),
    _define(
        "diagnose.hang",
        "An engine hung: requests waited and no step came",
        "what the watchdog saw and kept; github.com/vllm-project/vllm/issues/27313, 46611",
        "process",
    ),
    _define(
        "diagnose.head_lost",
        "The other hosts of the group lost the one that leads them",
        "github.com/vllm-project/vllm/issues/32136",
        "process",
    ),
    _define(
        "diagnose.host_memory",
        "The kernel killed a process for want of memory",
        "the kernel's messages; github.com/kvcache-ai/ktransformers/issues/890",
        "depends",
    ),
    _define(
        "diagnose.illegal_memory_access",
        "A kernel of the engine read or wrote memory that is not its own",
        "github.com/sgl-project/sglang/issues/13308, 13234; "
        "github.com/vllm-project/vllm/issues/50147",
    ),
    _define(
        "diagnose.kv_cache_memory",
        "The cache cannot hold one conversation of the context that was set",
        "github.com/SemiAnalysisAI/InferenceX/issues/1587",
    ),
    _define(
        "diagnose.mnnvl_workspace",
        "FlashInfer's all-reduce waits for NVLink between hosts that have none",
        "github.com/vllm-project/vllm/issues/51986",
    ),
    _define(
        "diagnose.no_progress",
        "Requests run and no token comes",
        "two readings of the engine's own counters; github.com/gpustack/gpustack/issues/3888",
        "process",
        ("blocker", "warning"),
    ),
    _define(
        "diagnose.numa_node",
        "The engine was told of a NUMA node that it cannot see",
        "github.com/kvcache-ai/ktransformers/issues/1570",
    ),
    _define(
        "diagnose.parser_unknown",
        "This version of the engine does not know the model's parser",
        "github.com/MoonshotAI/Kimi-K2/issues/19; github.com/kvcache-ai/ktransformers/issues/1961",
    ),
    _define(
        "diagnose.preemptions",
        "Requests lose their place in the cache and are computed again",
        "the engine's own counters",
        severities=("warning",),
    ),
    _define(
        "diagnose.prefill_threshold",
        "KTransformers computes long prompts on the GPU layer by layer: answers may be gibberish",
        "github.com/kvcache-ai/ktransformers/issues/1816, 1866",
        severities=("warning",),
    ),
    _define(
        "diagnose.ptx",
        "The driver is too old for the engine's kernels",
        "github.com/vllm-project/vllm/issues/31700, 47397",
        "software",
    ),
    _define(
        "diagnose.resting",
        "The machine does not serve on purpose: it is stopped, or asleep",
        "the mark that kimi-prov stop and kimi-idle leave (/var/lib/kimi/state/stopped.json)",
        "process",
        ("warning", "info"),
    ),
    _define(
        "diagnose.sleep_weights",
        "The engine was woken from sleep of level 2 without its weights: it answers nonsense",
        "github.com/vllm-project/vllm/pull/54235, issues/29341",
        "process",
    ),
    _define(
        "diagnose.slow_load",
        "Loading the weights takes long",
        "github.com/modelplaneai/modelplane/issues/204; github.com/vllm-project/vllm/pull/14447",
        "depends",
        ("warning",),
    ),
    _define(
        "diagnose.slower",
        "Tokens come slower than the plan predicts",
        "github.com/vllm-project/vllm/issues/43153: a version alone cost 38 %",
        "depends",
        ("warning",),
    ),
    _define(
        "diagnose.tokenizer",
        "The tokenizer was converted, and Kimi's special tokens have wrong numbers",
        "github.com/NVIDIA/TensorRT-LLM/pull/14416; github.com/huggingface/transformers/pull/45359",
        "software",
    ),
    _define(
        "diagnose.tool_calls",
        "Tool calls of the model could not be read",
        "github.com/vllm-project/vllm/issues/24478, pull/33646; "
        "github.com/MoonshotAI/Kimi-K2/issues/89",
        severities=("warning",),
    ),
)
