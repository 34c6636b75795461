"""What is recognised in the lines that engines and the kernel wrote."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from kimi_prov.operate.diagnosis.evidence import Evidence, Hit
from kimi_prov.operate.diagnosis.rules.registry import (
    make_observation,
    register_rule,
)
from kimi_prov.planner.findings import Observation

if TYPE_CHECKING:
    from collections.abc import Iterator
# An engine that waits for a block of shared memory is normal while a model compiles or loads; three
# minutes of it in a row are not.
WAITED_MINUTES = 3
# A disk of 1 GB/s reads the largest model in this time.
_SLOW_LOAD_S = 900
# Or so many times the slowest load that the plan predicts.
_SLOWER_LOAD = 1.5


_KV = re.compile(r"KV cache is needed, which is larger than the available KV cache memory")
_KV_FITS = re.compile(r"estimated maximum model length is (\d+)")


@register_rule("diagnose.kv_cache_memory")
def detect_kv_cache_memory(evidence: Evidence) -> Observation | None:
    """Name the context that the engine says would fit."""
    hit = evidence.last(_KV)
    fits = _KV_FITS.search(hit.entry.message) if hit else None
    length = f"kimi_context: {fits[1]} or less" if fits else "a smaller kimi_context"
    return make_observation(evidence, hit, f"set {length}, or leave it at auto; then apply")


_OOM = re.compile(r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory")
_CAPTURE = re.compile(
    r"capture_model|capture_begin|capture_end|torch\.cuda\.graph\(|cuda_graph\.py|"
    r"Capturing (?:CUDA|cuda)|cuda graph addresses"
)
# The traceback of a worker has so many lines, and tracebacks of several workers come mixed.
_TRACEBACK = 400


def _find_out_of_memory(evidence: Evidence) -> Iterator[tuple[Hit, bool]]:
    """Give each engine's last line about memory, and whether it was capturing graphs."""
    for entries in evidence.engines():
        hit = Evidence(logs={entries[0].unit: entries}).last(_OOM) if entries else None
        if hit is not None:
            at = entries.index(hit.entry)
            before = entries[max(0, at - _TRACEBACK) : at + 1]
            yield hit, any(_CAPTURE.search(entry.message) for entry in before)


@register_rule("diagnose.graph_capture_memory")
def detect_graph_capture_memory(evidence: Evidence) -> Observation | None:
    """Report memory that ran out while the engine captured CUDA graphs."""
    hit = next((hit for hit, captured in _find_out_of_memory(evidence) if captured), None)
    return make_observation(
        evidence,
        hit,
        "leave more memory beside the cache: kimi_engine_args: {gpu-memory-utilization: 0.88}, or "
        "capture fewer graphs: {max-cudagraph-capture-size: 64}; then apply",
    )


@register_rule("diagnose.gpu_memory")
def detect_gpu_memory(evidence: Evidence) -> Observation | None:
    """Report memory that ran out while weights were loaded or requests ran."""
    hit = next((hit for hit, captured in _find_out_of_memory(evidence) if not captured), None)
    ktransformers = evidence.planned("engine", "name") == "ktransformers"
    fix = (
        "keep fewer experts on the GPU: kimi_engine_args: {kt-num-gpu-experts: 1}, or set a "
        "smaller kimi_context; then apply"
        if ktransformers
        else "set a smaller kimi_context or kimi_concurrency, and see that nothing else holds the "
        "GPUs: nvidia-smi; then apply"
    )
    return make_observation(evidence, hit, fix)


_PTX = re.compile(r"provided PTX was compiled with an unsupported toolchain")


@register_rule("diagnose.ptx")
def detect_ptx(evidence: Evidence) -> Observation | None:
    """Report kernels that the driver cannot translate."""
    return make_observation(
        evidence,
        evidence.last(_PTX),
        "let apply install the driver: kimi_nvidia_driver_version: auto, and consent to the "
        "restart by nvidia_driver_reboot_ok: true; INT4 on Hopper needs 580 or newer",
    )


_TOOL_CALL = re.compile(
    r"Error in extracting tool call from response|Error trying to handle streaming tool call"
)


@register_rule("diagnose.tool_calls")
def detect_tool_calls(evidence: Evidence) -> Observation | None:
    """Report calls that the engine's parser could not read."""
    hit = evidence.last(_TOOL_CALL)
    if hit is None:
        return None
    return Observation(
        observed=hit.observed,
        required="every call of a tool is read as one",
        fix="try this version with  kimi-prov verify INVENTORY --suite full  (its checks of tools "
        "say what is lost); then set a newer kimi_engine_version and apply",
        severity="warning",
    )


_PARSER = re.compile(
    r"invalid (?:tool call|reasoning) parser|Unsupported (?:model type|tool[_-]call parser)|"
    r"(?:tool-call-parser|reasoning-parser): invalid choice",
    re.I,
)


@register_rule("diagnose.parser_unknown")
def detect_parser_unknown(evidence: Evidence) -> Observation | None:
    """Report a parser that the engine is too old for."""
    return make_observation(
        evidence,
        evidence.last(_PARSER),
        "set kimi_engine_version: auto, which takes one that knows the model; then apply",
    )


_TOKENIZER = re.compile(
    r"Could not extract SentencePiece model from \S*tiktoken\.model|"
    r"media_placeholder_token_id.{0,80}(?:disagree|mismatch)"
)


@register_rule("diagnose.tokenizer")
def detect_tokenizer(evidence: Evidence) -> Observation | None:
    """Report a tokenizer that transformers 5 converted, by the line that it writes then."""
    return make_observation(
        evidence,
        evidence.last(_TOKENIZER),
        "set kimi_engine_version: auto and apply: a pinned engine brings the packages that it was "
        "seen to answer with;  kimi-prov verify INVENTORY  holds the answers",
    )


_LOADED = re.compile(r"Loading weights took ([\d.]{1,12}) seconds")


@register_rule("diagnose.slow_load")
def detect_slow_load(evidence: Evidence) -> Observation | None:
    """Report weights that took longer to load than the plan predicts or a slow disk needs."""
    hit = evidence.last(_LOADED)
    match = _LOADED.search(hit.entry.message) if hit else None
    limit = max(_SLOW_LOAD_S, _SLOWER_LOAD * (evidence.figure("throughput", "load_s", "high") or 0))
    if hit is None or match is None or float(match[1]) <= limit:
        return None
    return Observation(
        observed=hit.observed,
        required=f"at most {limit:.0f} s",
        fix="keep the weights on disks of the machine itself, NVMe; kimi_ram_disk: auto keeps them "
        "in memory where there is room;  kimi-prov probe --measure  tells what the disk gives",
        severity="warning",
    )


NO_BLOCK = re.compile(r"No available shared memory broadcast block found in \d+ second")


@register_rule("diagnose.broadcast_block")
def detect_broadcast_block(evidence: Evidence) -> Observation | None:
    """Report processes of an engine that wait for one of them for minutes."""
    return make_observation(
        evidence,
        evidence.last(NO_BLOCK, least=WAITED_MINUTES),
        "see which process stands still: py-spy dump, or nvidia-smi for a GPU at 0 or 100 %; then "
        "systemctl restart 'kimi-serve@*' on the machine (of a group, the head's is enough)",
    )


_ILLEGAL = re.compile(r"an illegal memory access was encountered")


@register_rule("diagnose.illegal_memory_access")
def detect_illegal_memory_access(evidence: Evidence) -> Observation | None:
    """Report a fault in the engine's kernels, which no setting of this machine causes."""
    return make_observation(
        evidence,
        evidence.last(_ILLEGAL),
        "set another kimi_engine_version and apply; until then fewer requests at a time "
        "(kimi_concurrency) make it rarer; report it to the engine's project with this bundle",
    )


_HEAD = re.compile(
    r"recvValue failed on SocketImpl|Failed to recv, got 0 bytes|"
    r"Failed to check the \"should dump\" flag on TCPStore"
)


@register_rule("diagnose.head_lost")
def detect_head_lost(evidence: Evidence) -> Observation | None:
    """Report ranks whose head ended: they do not reconnect by themselves."""
    hit = evidence.last(_HEAD)
    return make_observation(
        evidence,
        hit if evidence.planned("group") else None,
        "look why the head's engine ended (its own findings), and restart the group as a whole: "
        "systemctl restart kimi-serve@0 on the head",
    )


_THRESHOLD = re.compile(r"kt[-_]gpu[-_]prefill[-_]token[-_]threshold['\"]?[=\s,]+['\"]?(\d{1,9})")


@register_rule("diagnose.prefill_threshold")
def detect_prefill_threshold(evidence: Evidence) -> Observation | None:
    """Report the flag, in the plan or in the arguments that the engine logged."""
    planned = _THRESHOLD.search(json.dumps(evidence.planned("instances")))
    hit = evidence.last(_THRESHOLD)
    if planned is None and hit is None:
        return None
    where = (
        hit.observed if hit else f"the plan's command line has it, with {planned and planned[1]}"
    )
    return Observation(
        observed=where,
        required="no such flag, or a prompt above it that was compared with one below",
        fix="take kt-gpu-prefill-token-threshold out of kimi_engine_args and apply",
        severity="warning",
    )


_NUMA = re.compile(r"NUMA node \d+ not found|set_mempolicy: (?:Invalid argument|Operation not)")


@register_rule("diagnose.numa_node")
def detect_numa_node(evidence: Evidence) -> Observation | None:
    """Report a pool of threads that was bound to a node that does not exist."""
    return make_observation(
        evidence,
        evidence.last(_NUMA),
        "let the planner place the pools: no kt-threadpool-count, kt-numa-nodes or numactl of your "
        "own; in a container allow set_mempolicy (CAP_SYS_NICE); then apply",
    )


_SLEPT = re.compile(r"/sleep\?(?:\S*&)?level=2\b")
_WOKEN = re.compile(r"/wake_up\b|to wake up tags \[[^]]*weights")
_RELOADED = re.compile(r"Reloading weights in-?place", re.I)


@register_rule("diagnose.sleep_weights")
def detect_sleep_weights(evidence: Evidence) -> Observation | None:
    """Report an engine that woke from a sleep in which it dropped its weights."""
    for entries in evidence.engines():
        slept, woken, count = False, None, 0
        for entry in entries:
            if _SLEPT.search(entry.message):
                slept, woken = True, None
            elif _RELOADED.search(entry.message):
                slept, woken = False, None
            elif slept and _WOKEN.search(entry.message):
                woken, count = entry, count + 1
        if woken is not None:
            hit = Evidence(logs={woken.unit: entries}).last(re.compile(re.escape(woken.message)))
            over = hit is not None and hit.over
            return make_observation(
                evidence,
                Hit(woken, count, over),
                "restart the engine: systemctl restart 'kimi-serve@*'; a sleep of level 2 needs "
                "collective_rpc reload_weights between the weights and the cache",
            )
    return None


_WORKSPACE = re.compile(r"Failed to initialize FlashInfer All Reduce workspace")


@register_rule("diagnose.mnnvl_workspace")
def detect_mnnvl_workspace(evidence: Evidence) -> Observation | None:
    """Report a start that waits once for each layer."""
    return make_observation(
        evidence,
        evidence.last(_WORKSPACE),
        "turn that pass off: kimi_engine_args: {compilation-config: "
        '\'{"pass_config": {"fuse_allreduce_rms": false}}\'}; then apply',
    )


_XID_LOST = re.compile(r"NVRM:.*(?:Xid.*: 79\b|fallen off the bus)")


@register_rule("diagnose.gpu_lost")
def detect_gpu_lost(evidence: Evidence) -> Observation | None:
    """Report a GPU that the kernel lost: no restart of an engine brings it back."""
    return make_observation(
        evidence,
        evidence.in_kernel(_XID_LOST),
        "restart the machine; if it happens again, have power, seating and cooling of that GPU "
        "checked (NVIDIA asks for the output of nvidia-bug-report.sh)",
    )


_KILLED = re.compile(r"Out of memory: Killed process|oom-kill:")


@register_rule("diagnose.host_memory")
def detect_host_memory(evidence: Evidence) -> Observation | None:
    """Report a process that the kernel killed."""
    return make_observation(
        evidence,
        evidence.in_kernel(_KILLED),
        "kimi-prov plan INVENTORY  says what the model takes: set kimi_ram_disk: auto, a smaller "
        "kimi_context, or kimi_instances: 1; end other programs; then apply",
    )
