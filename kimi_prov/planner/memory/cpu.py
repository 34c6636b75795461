"""How weights, cache and overhead share the memory, and which context that leaves. All in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import human
from kimi_prov.planner.decisions import Budget, Part
from kimi_prov.planner.engine.flag_names import VLLM, whole
from kimi_prov.planner.memory import architecture
from kimi_prov.planner.memory.numa import room_of, roomiest

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Slices, Workload
    from kimi_prov.planner.engine.flag_names import FlagNames
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

GIB = 1 << 30
# Contexts are offered in whole blocks of this many tokens.
CONTEXT_STEP = 1024


def on_cpu(
    host: Host,
    settings: Settings,
    work: Workload,
    weights: int,
    slices: Slices | None = None,
    instances: int = 1,
) -> Budget:
    """Count as vLLM's CPU backend does: cache in whole GiB, weights copied into memory.

    `weights`: their bytes as they lie in memory; `slices`: how experts by kt-kernel or repacked
    ones lie on the nodes. Of several `instances` each has a node of its own, its own copy of all
    and a share of the requests.
    """
    engine, model = work.engine, work.model
    loading = slices.loading if slices else 0
    per_token = architecture.kv_bytes_per_token(model.architecture)
    free = host.memory_bytes - host.reserve_bytes
    if instances > 1:
        free = min(room_of(node) for node in roomiest(host, instances))
    free -= weights + engine.overhead_bytes + loading
    if slices is not None and slices.nodes > 1:
        # vLLM keeps its own weights and the cache on the first node alone.
        beside = weights - slices.experts + engine.overhead_bytes
        own = -(-(slices.experts + loading + host.reserve_bytes) // slices.nodes)
        free = min(free, min(n.memory_bytes for n in host.nodes) - own - beside)
    most = max(GIB, free // GIB * GIB)
    context = fitting_context(settings, model, VLLM, most // per_token)
    each = -(-settings.concurrency // instances)
    requests = whole(settings.engine_args.get(VLLM.requests)) or each
    wanted = -(-context * requests * per_token // GIB) * GIB
    kv = max(GIB, min(wanted, most))
    return Budget(
        context=context,
        kv_bytes=kv,
        kv_bytes_per_token=per_token,
        kv_dtype="bf16",
        parts=(
            Part("weights", "Weights", instances * weights),
            Part("cache", "Cache of conversations", instances * kv),
            Part("overhead", "The engine's processes", instances * engine.overhead_bytes),
            *(
                [Part("overhead", "A layer while it is loaded", instances * loading)]
                if loading
                else []
            ),
            Part("system", "Left to the system", host.reserve_bytes),
        ),
        weights_total=architecture.checkpoint_bytes(model.architecture, work.weights_format),
        instances=instances,
    )


def cpu_resident_bytes(model: Model, weights_format: str, experts: int | None) -> int:
    """Return what the weights take in memory without GPUs: more than the files where repacked.

    `experts`: bytes of the routed experts in memory, None where they stay as in the files.
    """
    shape = model.architecture
    if experts is None:
        return architecture.checkpoint_bytes(shape, weights_format)
    return experts + architecture.plain_bytes(shape, weights_format)


def fitting_context(settings: Settings, model: Model, names: FlagNames, most_tokens: int) -> int:
    """Tokens asked for, or the most that model and cache allow in whole steps.

    The engine's own flag in `kimi_engine_args` wins over `kimi_context`.
    """
    given = whole(settings.engine_args.get(names.context))
    if given is not None:
        return given
    if not settings.auto("context"):
        return int(settings.context)
    fits = max(CONTEXT_STEP, most_tokens // CONTEXT_STEP * CONTEXT_STEP)
    return min(model.context, fits)


def document(found: Budget, host: Host, ram_disk_bytes: int) -> dict[str, Any]:
    """Give the plan's `memory`."""
    gpu = found.gpu
    return {
        "weights_bytes_total": found.weights_total,
        "weights_bytes_per_gpu": gpu.weights if gpu else None,
        "replicated_bytes_per_gpu": gpu.replicated if gpu else None,
        "gpu_bytes": gpu.memory if gpu else None,
        "gpu_utilization": gpu.utilization if gpu else None,
        "gpu_experts": gpu.experts if gpu else None,
        "kv_bytes_per_token": found.kv_bytes_per_token,
        "kv_available_bytes_per_gpu": found.kv_bytes if gpu else None,
        "kv_available_bytes": None if gpu else found.kv_bytes,
        "kv_tokens_max": found.kv_tokens,
        "overhead_bytes_per_gpu": gpu.overhead if gpu else None,
        "host_ram_required_bytes": found.host_required + ram_disk_bytes,
        "host_ram_available_bytes": host.memory_bytes,
        "host_parts": [
            {"kind": part.kind, "name": part.name, "bytes": part.size_bytes} for part in found.parts
        ],
    }


def judge(
    host: Host,
    settings: Settings,
    model: Model,
    found: Budget,
    names: FlagNames,
    findings: Findings,
) -> None:
    """Say what does not fit: host memory, each GPU's memory, the context."""
    _judge_ram(host, found, findings)
    _judge_gpu(model, found, findings)
    _judge_context(settings, model, found, names, findings)


def _judge_ram(host: Host, found: Budget, findings: Findings) -> None:
    if not host.memory_bytes:
        findings.add(
            "memory.host",
            severity="warning",
            observed="unknown",
            required=human(found.host_required),
            fix="name the memory in the spec sheet, or probe the machine",
        )
    elif found.host_required > host.memory_bytes:
        findings.add(
            "memory.host",
            severity="blocker",
            observed=human(host.memory_bytes),
            required=human(found.host_required),
            fix="use a machine with more memory, a smaller model, or a smaller kimi_context",
        )
    else:
        findings.add(
            "memory.host",
            severity="pass",
            observed=human(host.memory_bytes),
            required=human(found.host_required),
        )


def _judge_gpu(model: Model, found: Budget, findings: Findings) -> None:
    gpu = found.gpu
    if gpu is None:
        return
    usable = int(gpu.memory * gpu.utilization)
    need = gpu.weights + gpu.overhead
    shown = (
        f"{human(gpu.weights)} of weights and {human(gpu.overhead)} of working memory on each "
        f"of {gpu.ranks} GPU(s)"
    )
    if found.kv_bytes <= 0:
        findings.add(
            "gpu.memory",
            severity="blocker",
            names={"model": model.name},
            observed=f"{human(usable)} usable of {human(gpu.memory)} on each "
            f"(the engine would say `Available KV cache memory: {found.kv_bytes / GIB:.2f} GiB`)",
            required=f"more than {human(need)}: {shown}",
            fix="use more or larger GPUs"
            + (
                ", or kimi_engine: ktransformers, which keeps experts in host memory"
                if model.versions("ktransformers") and gpu.experts is None
                else ""
            ),
        )
    else:
        findings.add(
            "gpu.memory",
            severity="pass",
            observed=f"{human(usable)} usable on each, {human(found.kv_bytes)} of it for the cache",
            required=shown,
        )


def _judge_context(
    settings: Settings, model: Model, found: Budget, names: FlagNames, findings: Findings
) -> None:
    flag = names.context if whole(settings.engine_args.get(names.context)) else None
    place = f"{flag} in kimi_engine_args" if flag else "kimi_context"
    if found.context > model.context:
        findings.add(
            "context.model",
            names={"model": model.name},
            observed=f"kimi_engine_args: {flag}: {found.context}"
            if flag
            else f"kimi_context: {found.context}",
            required=f"at most {model.context} tokens",
            fix=f"remove {flag} from kimi_engine_args"
            if flag
            else f"set kimi_context to {model.context} or less, or to auto",
            source=model.source,
        )
    if found.kv_tokens_one < found.context:
        findings.add(
            "context.memory",
            observed=f"room for {found.kv_tokens_one} tokens",
            required=f"{found.context} tokens",
            fix=_shorter(model, found, place),
        )
    elif found.kv_tokens * found.instances < found.context * settings.concurrency:
        findings.add(
            "context.concurrency",
            observed=f"cache for {found.kv_tokens * found.instances} tokens",
            required=f"{settings.concurrency} x {found.context} tokens for all at once",
        )


def _shorter(model: Model, found: Budget, place: str) -> str:
    """Say which context fits, and what would hold the one asked for; `place`: where that is set."""
    if found.kv_tokens_one < CONTEXT_STEP:
        return "use a machine with more memory, or more or larger GPUs"
    ways = [f"set {place} to {found.kv_tokens_one // CONTEXT_STEP * CONTEXT_STEP} or less"]
    gpu = found.gpu
    if gpu is not None and gpu.experts is None:
        if found.kv_dtype == "bf16" and 2 * found.kv_tokens_one >= found.context:
            ways.append(f"kimi_kv_dtype to fp8 (room for {2 * found.kv_tokens_one} tokens)")
        if gpu.decode_context == 1 and gpu.ranks * found.kv_tokens_one >= found.context:
            ways.append(f"{VLLM.decode_context_parallel} {gpu.ranks} in kimi_engine_args")
        if model.versions("ktransformers"):
            ways.append("kimi_engine to ktransformers (experts in host memory, slower)")
    return ", or ".join(ways)
