"""What is recognised in the logs and metrics of one machine: a pure function for each finding.

Decides: what `diagnose` recognises.
Applied by: playbooks/diagnose.yml.
Held by: tests/unit/operate/test_diagnosis_rules.py, tests/data/recordings/diagnose,
  tests/unit/commands/test_diagnose_command.py, tests/lab/test_diagnose.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import FULL_BYTES, FULL_SHARE, format_bytes, is_nearly_full
from kimi_prov.on_host.system import units
from kimi_prov.operate.diagnosis.evidence import Evidence, Hit
from kimi_prov.planner.findings import Observation, make_finding, sort_by_severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.planner.registry.definition import Severity

    Check = Callable[[Evidence], "Observation | None"]

RULES: dict[str, Check] = {}
_EVERYWHERE = "no such line since the engine last answered"
# A block of shared memory that is not to be had is nothing while a model compiles or loads; a third
# minute of it in a row is.
_WAITED_MINUTES = 3
# A disk that gives 1 GB/s has read the largest model after this.
_SLOW_LOAD_S = 900
# Or the slowest that the plan predicts, so many times.
_SLOWER_LOAD = 1.5
# Below this part of the slowest that the plan predicts.
_MUCH_SLOWER = 0.7
# Fewer tokens or requests than these say nothing.
_MIN_TOKENS, _MIN_REQUESTS = 1000, 20
_MANY_PREEMPTIONS = 0.01


def register_rule(identity: str) -> Callable[[Check], Check]:
    """Register a function as the rule of a finding of the registry."""

    def register(check: Check) -> Check:
        assert identity not in RULES, identity  # noqa: S101  (two rules of one name)
        RULES[identity] = check
        return check

    return register


def run_rules(evidence: Evidence) -> list[Finding]:
    """Return what is recognised, the gravest first."""
    seen = ((identity, check(evidence)) for identity, check in RULES.items())
    return sort_by_severity(
        make_finding(identity, **observation)
        for identity, observation in seen
        if observation is not None
    )


def _choose_severity(evidence: Evidence, hit: Hit) -> Severity:
    """Say what a line means now: over, survived, or what keeps the model from serving."""
    vain = evidence.rest.get("failed")
    if hit.over or (evidence.rest and not vain):
        # What rests on purpose is kept by nothing from serving.
        return "info"
    return "warning" if evidence.serving and not vain else "blocker"


def _make_observation(evidence: Evidence, hit: Hit | None, fix: str) -> Observation | None:
    if hit is None:
        return None
    severity = _choose_severity(evidence, hit)
    return Observation(observed=hit.observed, required=_EVERYWHERE, fix=fix, severity=severity)


_KV = re.compile(r"KV cache is needed, which is larger than the available KV cache memory")
_KV_FITS = re.compile(r"estimated maximum model length is (\d+)")


@register_rule("diagnose.kv_cache_memory")
def detect_kv_cache_memory(evidence: Evidence) -> Observation | None:
    """Name the context that the engine says would fit."""
    hit = evidence.last(_KV)
    fits = _KV_FITS.search(hit.entry.message) if hit else None
    length = f"kimi_context: {fits[1]} or less" if fits else "a smaller kimi_context"
    return _make_observation(evidence, hit, f"set {length}, or leave it at auto; then apply")


_OOM = re.compile(r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory")
_CAPTURE = re.compile(
    r"capture_model|capture_begin|capture_end|torch\.cuda\.graph\(|cuda_graph\.py|"
    r"Capturing (?:CUDA|cuda)|cuda graph addresses"
)
# A traceback of a worker is that long, and those of several come mixed.
_TRACEBACK = 400


def _find_out_of_memory(evidence: Evidence) -> Iterator[tuple[Hit, bool]]:
    """Give the last line of each engine that tells of memory, and whether graphs were captured."""
    for entries in evidence.engines():
        hit = Evidence(logs={entries[0].unit: entries}).last(_OOM) if entries else None
        if hit is not None:
            at = entries.index(hit.entry)
            before = entries[max(0, at - _TRACEBACK) : at + 1]
            yield hit, any(_CAPTURE.search(entry.message) for entry in before)


@register_rule("diagnose.graph_capture_memory")
def detect_graph_capture_memory(evidence: Evidence) -> Observation | None:
    """Tell memory that ran out at the capture of graphs from any other."""
    hit = next((hit for hit, captured in _find_out_of_memory(evidence) if captured), None)
    return _make_observation(
        evidence,
        hit,
        "leave more memory beside the cache: kimi_engine_args: {gpu-memory-utilization: 0.88}, or "
        "capture fewer graphs: {max-cudagraph-capture-size: 64}; then apply",
    )


@register_rule("diagnose.gpu_memory")
def detect_gpu_memory(evidence: Evidence) -> Observation | None:
    """Tell of memory that ran out while weights were loaded or requests ran."""
    hit = next((hit for hit, captured in _find_out_of_memory(evidence) if not captured), None)
    ktransformers = evidence.planned("engine", "name") == "ktransformers"
    fix = (
        "keep fewer experts on the GPU: kimi_engine_args: {kt-num-gpu-experts: 1}, or set a "
        "smaller kimi_context; then apply"
        if ktransformers
        else "set a smaller kimi_context or kimi_concurrency, and see that nothing else holds the "
        "GPUs: nvidia-smi; then apply"
    )
    return _make_observation(evidence, hit, fix)


_PTX = re.compile(r"provided PTX was compiled with an unsupported toolchain")


@register_rule("diagnose.ptx")
def detect_ptx(evidence: Evidence) -> Observation | None:
    """Tell of kernels that the driver cannot translate."""
    return _make_observation(
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
    """Tell of calls that the engine's parser gave up on."""
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
    """Tell of a parser that the engine is too old for."""
    return _make_observation(
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
    """Tell of a tokenizer that transformers 5 converted, by the line that it writes then."""
    return _make_observation(
        evidence,
        evidence.last(_TOKENIZER),
        "set kimi_engine_version: auto and apply: a pinned engine brings the packages that it was "
        "seen to answer with;  kimi-prov verify INVENTORY  holds the answers",
    )


_LOADED = re.compile(r"Loading weights took ([\d.]{1,12}) seconds")


@register_rule("diagnose.slow_load")
def detect_slow_load(evidence: Evidence) -> Observation | None:
    """Tell of weights that took longer to load than the plan, or any disk, lets expect."""
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


_BLOCK = re.compile(r"No available shared memory broadcast block found in \d+ second")


@register_rule("diagnose.broadcast_block")
def detect_broadcast_block(evidence: Evidence) -> Observation | None:
    """Tell of processes of an engine that wait for minutes for one of them."""
    return _make_observation(
        evidence,
        evidence.last(_BLOCK, least=_WAITED_MINUTES),
        "see which process stands still: py-spy dump, or nvidia-smi for a GPU at 0 or 100 %; then "
        "systemctl restart 'kimi-serve@*' on the machine (of a group, the head's is enough)",
    )


_ILLEGAL = re.compile(r"an illegal memory access was encountered")


@register_rule("diagnose.illegal_memory_access")
def detect_illegal_memory_access(evidence: Evidence) -> Observation | None:
    """Tell of a fault in the engine's kernels: nothing of this machine's settings."""
    return _make_observation(
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
    """Tell of ranks whose head ended: they do not find back to it by themselves."""
    hit = evidence.last(_HEAD)
    return _make_observation(
        evidence,
        hit if evidence.planned("group") else None,
        "look why the head's engine ended (its own findings), and restart the group as a whole: "
        "systemctl restart kimi-serve@0 on the head",
    )


_THRESHOLD = re.compile(r"kt[-_]gpu[-_]prefill[-_]token[-_]threshold['\"]?[=\s,]+['\"]?(\d{1,9})")


@register_rule("diagnose.prefill_threshold")
def detect_prefill_threshold(evidence: Evidence) -> Observation | None:
    """Tell of the flag, in the plan or in what the engine says it was started with."""
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
    """Tell of a pool of threads that was bound to a node that is not there."""
    return _make_observation(
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
    """Tell of an engine that woke from a sleep in which it threw its weights away."""
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
            return _make_observation(
                evidence,
                Hit(woken, count, over),
                "restart the engine: systemctl restart 'kimi-serve@*'; a sleep of level 2 needs "
                "collective_rpc reload_weights between the weights and the cache",
            )
    return None


_WORKSPACE = re.compile(r"Failed to initialize FlashInfer All Reduce workspace")


@register_rule("diagnose.mnnvl_workspace")
def detect_mnnvl_workspace(evidence: Evidence) -> Observation | None:
    """Tell of a start that goes through a wait for each layer."""
    return _make_observation(
        evidence,
        evidence.last(_WORKSPACE),
        "turn that pass off: kimi_engine_args: {compilation-config: "
        '\'{"pass_config": {"fuse_allreduce_rms": false}}\'}; then apply',
    )


_XID_LOST = re.compile(r"NVRM:.*(?:Xid.*: 79\b|fallen off the bus)")


@register_rule("diagnose.gpu_lost")
def detect_gpu_lost(evidence: Evidence) -> Observation | None:
    """Tell of a GPU that the kernel lost: no restart of an engine brings it back."""
    return _make_observation(
        evidence,
        evidence.in_kernel(_XID_LOST),
        "restart the machine; where it comes again have power, seating and cooling of that GPU "
        "looked at (nvidia-bug-report.sh is what NVIDIA asks for)",
    )


_KILLED = re.compile(r"Out of memory: Killed process|oom-kill:")


@register_rule("diagnose.host_memory")
def detect_host_memory(evidence: Evidence) -> Observation | None:
    """Tell of a process that the kernel killed."""
    return _make_observation(
        evidence,
        evidence.in_kernel(_KILLED),
        "kimi-prov plan INVENTORY  says what the model takes: set kimi_ram_disk: auto, a smaller "
        "kimi_context, or kimi_instances: 1; end other programs; then apply",
    )


def _has_moved(first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    """Whether an engine did anything between two readings: a long prompt moves its steps."""
    names = (
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:iteration_tokens_total_count",
        "sglang:generation_tokens_total",
        "sglang:prompt_tokens_total",
    )
    return any(second.get(name) != first.get(name) for name in names)


@register_rule("diagnose.no_progress")
def detect_no_progress(evidence: Evidence) -> Observation | None:
    """Tell of requests that run while no counter of the engine's moves."""
    for row in evidence.metrics:
        running = row.state.running if row.state else 0
        if not running or row.second is None or _has_moved(row.first, row.second):
            continue
        waits = evidence.last(_BLOCK, least=_WAITED_MINUTES)
        stuck = waits is not None and not waits.over
        return Observation(
            observed=f"{row.unit}: {running:.0f} running, and in {row.apart_s:.0f} s no token of a "
            "prompt or an answer",
            required="tokens, where requests run (a long prompt may take longer than that)",
            fix="run this again; where it stays so:  systemctl restart 'kimi-serve@*'  on the "
            "machine",
            severity="blocker" if stuck else "warning",
        )
    return None


@register_rule("diagnose.hang")
def detect_hang(evidence: Evidence) -> Observation | None:
    """Tell of an engine that the watchdog saw hang, and what each of its processes was at."""
    last = evidence.hang
    if not last:
        return None
    over = isinstance(last.get("served_again_s"), int | float)
    ended = f"it went on {last['served_again_s']:.0f} s after its last step" if over else "since"
    many = len(evidence.hangs)
    severity: Severity = "warning" if evidence.serving else "blocker"
    return Observation(
        observed=f"{last.get('unit')}, {last.get('at')}: {last.get('why')} ({last.get('done')}); "
        f"{ended}{f'; {many} bundles are kept' if many > 1 else ''}",
        required="an engine that goes on while requests wait",
        fix="read hangs/ in the bundle: the process in stacks.txt that waits for nobody is the one "
        "that stands still; where it comes again set another kimi_engine_version and apply, and "
        "report it to the engine's project with this bundle",
        severity="info" if over and many < 2 else severity,
    )


@register_rule("diagnose.disk_full")
def detect_disk_full(evidence: Evidence) -> Observation | None:
    """Tell of file systems without room: an engine goes on, its next start may not."""
    full = [row for row in evidence.disks if is_nearly_full(row.free, row.size)]
    if not full:
        return None
    disks = "; ".join(
        f"{row.path}: {format_bytes(row.free)} of {format_bytes(row.size)} free" for row in full
    )
    return Observation(
        observed=disks,
        required=f"{FULL_SHARE:.0%} of it, or {format_bytes(FULL_BYTES)}",
        fix="kimi-prov clean INVENTORY  removes versions and models that nothing uses; then see "
        "what else grows there (du -xh --max-depth=2)",
        severity="warning" if evidence.serving else "blocker",
    )


@register_rule("diagnose.preemptions")
def detect_preemptions(evidence: Evidence) -> Observation | None:
    """Tell of a cache that is too small for what runs at once."""
    for row in evidence.metrics:
        lost = row.state.preemptions if row.state else None
        done = row.first.get("vllm:request_success_total") or row.first.get(
            "sglang:num_requests_total"
        )
        if lost and done and done >= _MIN_REQUESTS and lost / done > _MANY_PREEMPTIONS:
            return Observation(
                observed=f"{row.unit}: {lost:.0f} preemptions in {done:.0f} requests",
                required="less than one in a hundred",
                fix="set a smaller kimi_concurrency or kimi_context, or kimi_kv_dtype: fp8; then "
                "apply (only the slowest requests show it)",
                severity="warning",
            )
    return None


@register_rule("diagnose.slower")
def detect_slower(evidence: Evidence) -> Observation | None:
    """Hold the mean time between tokens against the slowest that the plan predicts."""
    expected = _find_expected_speed(evidence)
    for row in evidence.metrics if expected else ():
        for name in ("vllm:inter_token_latency_seconds", "sglang:inter_token_latency_seconds"):
            seconds, count = row.first.get(f"{name}_sum"), row.first.get(f"{name}_count")
            if not seconds or not count or count < _MIN_TOKENS:
                continue
            speed = count / seconds
            if speed < _MUCH_SLOWER * expected:
                return Observation(
                    observed=f"{row.unit}: {speed:.1f} tokens a second and request, over "
                    f"{count:.0f} tokens",
                    required=f"{expected:.1f} or more, by the plan",
                    fix="kimi-prov bench INVENTORY  says where it lies: compare it with a bench of "
                    "the version before, and look at clocks and placement in  kimi-prov status",
                    severity="warning",
                )
    return None


def _find_expected_speed(evidence: Evidence) -> float:
    """Return the slowest speed of a request that the plan predicts; 0 where it predicts none."""
    if evidence.planned("model", "random_weights") is not False:
        return 0.0
    one = evidence.figure("throughput", "decode_tok_s", "low")
    together = evidence.figure("throughput", "aggregate_tok_s", "low")
    at_once = evidence.figure("throughput", "concurrency")
    speeds = [one] if one else []
    speeds += [together / at_once] if together and at_once else []
    return min(speeds, default=0.0)


@register_rule("diagnose.resting")
def detect_resting(evidence: Evidence) -> Observation | None:
    """Tell of a machine that does not serve on purpose: no fault, but where it cannot be woken."""
    if not evidence.rest:
        return None
    failed = evidence.rest.get("failed")
    vain = f"; the last request that came could not wake it: {failed}" if failed else ""
    return Observation(
        observed=f"{evidence.rest['told'].partition(': kimi-prov')[0]}{vain}",
        required="a machine that serves, or rests because its operator wants that",
        fix="fix what the reason or the other findings name, then:  kimi-prov start INVENTORY"
        if failed
        else "nothing, where that is wanted; else:  kimi-prov start INVENTORY",
        severity="warning" if failed else "info",
    )


@register_rule("diagnose.gateway_split")
def detect_gateway_split(evidence: Evidence) -> Observation | None:
    """Tell of gateways that have one address at the same time."""
    if not evidence.split:
        return None
    return Observation(
        observed=evidence.split,
        required="one gateway that has it, and one that waits",
        fix="let both reach each other: protocol VRRP between their addresses, in the network and "
        "in packet filters of others; logs/kimi-gateway-address.service.log of both says what each "
        "heard",
        severity="blocker",
    )


def _list_hosts(evidence: Evidence) -> list[Mapping[str, Any]]:
    rows = evidence.gateway.get("hosts")
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _list_away(evidence: Evidence) -> list[str]:
    rows = [row for row in _list_hosts(evidence) if row.get("state") != "up"]
    return [f"{row.get('host')} ({row.get('state')})" for row in rows]


_SEEN = "kimi-prov status INVENTORY  says what each gateway sees; of a machine that serves:  "


@register_rule("diagnose.gateway_no_machine")
def detect_gateway_no_machine(evidence: Evidence) -> Observation | None:
    """Tell of a gateway that sends to nobody: its clients get 503."""
    away = _list_away(evidence)
    if not away or len(away) < len(_list_hosts(evidence)):
        return None
    return Observation(
        observed=f"none of {', '.join(away)}",
        required="a machine that takes requests",
        fix=f"{_SEEN}kimi-prov apply INVENTORY  pins its certificate and opens its port again",
        severity="blocker",
    )


@register_rule("diagnose.gateway_machine_out")
def detect_gateway_machine_out(evidence: Evidence) -> Observation | None:
    """Tell of machines that a gateway leaves out while others answer."""
    away = _list_away(evidence)
    if not away or len(away) == len(_list_hosts(evidence)):
        return None
    return Observation(
        observed=", ".join(away),
        required="all machines, but for those that rest or are being changed",
        fix=f"{_SEEN}kimi-prov apply INVENTORY  pins its certificate and opens its port again",
        severity="warning",
    )


@register_rule("diagnose.gateway_ahead")
def detect_gateway_ahead(evidence: Evidence) -> Observation | None:
    """Tell what will keep requests from a machine, or is counted wrongly."""
    rows = evidence.gateway.get("warnings")
    problems = [text for text in rows if isinstance(text, str)] if isinstance(rows, list) else []
    if not problems:
        return None
    return Observation(
        observed="; ".join(problems),
        required="certificates that last, and one time everywhere",
        fix="kimi-prov apply INVENTORY  makes and pins certificates anew; have clocks kept by NTP",
        severity="warning",
    )


@register_rule("diagnose.down")
def detect_down(evidence: Evidence) -> Observation | None:
    """Tell which units do not run, and what the first of them says."""
    if not evidence.down:
        return None
    first = evidence.down[0]
    lines = [entry.message for entry in evidence.logs.get(first, ())]
    said = units.find_cause([line for text in lines for line in text.splitlines()])
    return Observation(
        observed=f"{', '.join(evidence.down)}; {first} said: {said}",
        required="active",
        fix="fix what the other findings name, or that line; then apply",
        severity="blocker",
    )
