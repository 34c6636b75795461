"""Who computes 4-bit experts on a machine without GPUs: kt-kernel inside vLLM, or vLLM itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.versions import number
from kimi_prov.planner.decisions import Slices
from kimi_prov.planner.memory import architecture, numa

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import ExpertBackend, Placement, Workload
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

# How the catalogue calls the form in which each backend keeps the experts in memory.
RESIDENT: dict[ExpertBackend, str] = {"kt": "rawint4", "vllm": "vllm-cpu-int4"}
_COST = "0.78 bytes a weight in memory, and 57 to 100 minutes of repacking at every start of Kimi"
# Tokens that kt-kernel takes in one call: its scratch memory is of that size.
CHUNK = 1024
# Fewer cores are shared with others: threads that give way to everybody would not get on.
_OWN_CORES = 8


def choose(
    host: Host,
    settings: Settings,
    catalogue: Catalogue,
    work: Workload,
    python: str,
    findings: Findings,
) -> ExpertBackend | None:
    """Choose the expert backend; None where the engine does it without the plugin, or nobody can.

    `python`: the version of the engine's own, such as "3.11".
    """
    engine, model, plugin = work.engine, work.model, work.engine.plugin
    if plugin is None or work.weights_format not in plugin.formats:
        return None
    unsupported = {
        backend: _unsupported_reason(backend, host, catalogue, work, python) for backend in RESIDENT
    }
    requested: ExpertBackend | None = settings.experts if settings.experts != "auto" else None
    supported = [backend for backend in RESIDENT if unsupported[backend] is None]
    if requested is not None and requested not in supported:
        findings.add(
            "experts.way",
            names={"way": requested},
            observed=str(unsupported[requested]),
            required=f"kimi_experts: {supported[0]}" if supported else "other hardware",
            fix="set kimi_experts to auto" if supported else "choose a machine with AVX512_BF16",
        )
        return requested
    if not supported:
        findings.add(
            "experts.way",
            wording="none",
            names={"engine": engine.name, "version": engine.version, "model": model.name},
            observed="; ".join(str(text) for text in unsupported.values()),
            required="AVX2 and a C library of 2.35 for kt-kernel, or AVX512_BF16 for vLLM's own",
            fix="use Debian 12 or newer on a CPU with AVX512, or GPUs",
        )
        return None
    backend = requested or supported[0]
    if backend == "vllm":
        findings.add(
            "experts.fallback",
            observed=f"kt-kernel: {unsupported['kt'] or 'not wanted (kimi_experts)'}",
            required=_COST,
            fix="set kimi_experts to auto"
            if unsupported["kt"] is None
            else "mend what keeps kt-kernel from it",
        )
    elif requested is None and "vllm" in supported and _holds(host, catalogue, work):
        findings.add(
            "experts.faster",
            observed="kt-kernel chosen: 0.625 bytes a weight, and a start in minutes",
            required=_COST,
            fix="set kimi_experts to vllm where that memory and start are no matter",
        )
    if backend == "kt" and host.isa is not None and "avx512bw" not in host.isa:
        findings.add(
            "experts.avx2",
            observed=f"{host.cpu_model}: no AVX512",
            required="AVX512F and AVX512BW",
            fix="use a CPU with AVX512; on a virtual machine, pass the host's CPU through",
        )
    return backend


def reason(backend: ExpertBackend) -> str:
    """Say why, for the plan's `engine.reason`."""
    return {
        "kt": "kt-kernel computes the INT4 experts from the checkpoint's own files, by a plugin "
        "inside vLLM",
        "vllm": f"vLLM's own INT4 experts, opened by a plugin ({_COST})",
    }[backend]


def resident_bytes(catalogue: Catalogue, backend: ExpertBackend | None, model: Model) -> int | None:
    """Bytes that the 4-bit experts take in memory; None where they stay as the files have them."""
    if backend is None:
        return None
    routed = architecture.routed_params(model.architecture)
    return round(routed * catalogue.format(RESIDENT[backend]).expert_bytes)


def slices(
    host: Host, catalogue: Catalogue, backend: ExpertBackend | None, model: Model
) -> Slices | None:
    """Give how the experts lie on the nodes: kt-kernel's in equal slices, vLLM's in one piece."""
    size = resident_bytes(catalogue, backend, model)
    if backend is None or size is None:
        return None
    count = numa.pool_count(host, model.architecture.expert_width) if backend == "kt" else 1
    return Slices(size, count, _loading_bytes(catalogue, backend, model))


def _loading_bytes(catalogue: Catalogue, backend: ExpertBackend, model: Model) -> int:
    """Bytes needed once more while a layer is loaded: its slices, or its repacked form.

    vLLM's own takes about 27 GiB for a layer of Kimi's.
    """
    shape = model.architecture
    layer = shape.experts * architecture.expert_params(shape)
    return round(layer * (catalogue.format("int4").expert_bytes if backend == "kt" else 1.7))


def instances(settings: Settings, findings: Findings) -> int:
    """Count the engines: one, whose experts lie in slices over the nodes."""
    if not settings.auto("instances") and int(settings.instances) > 1:
        findings.add(
            "experts.instances",
            observed=f"kimi_instances: {settings.instances}",
            required="one engine where kt-kernel computes the experts",
            fix="set kimi_instances to 1 or auto",
        )
    return 1


def environment(backend: ExpertBackend, place: Placement) -> dict[str, str]:
    """Give what the plugin reads."""
    if backend == "vllm":
        return {"KIMI_EXPERTS": backend}
    return {
        "KIMI_EXPERTS": backend,
        "KIMI_KT_CHUNK": str(CHUNK),
        "KIMI_KT_IDLE": "1" if place.pool_threads >= _OWN_CORES else "0",
        "KIMI_KT_NODES": ",".join(map(str, place.pools)),
        "KIMI_KT_THREADS": str(place.pool_threads),
        # So long vLLM's threads stay awake from one operation to the next, and no longer, so that
        # the pools get the shared cores: the best of ten that were measured
        # (docs/guides/kt-experts.md).
        "GOMP_SPINCOUNT": "5000",
    }


def document(backend: ExpertBackend | None, place: Placement) -> dict[str, Any] | None:
    """Give the plan's `experts`."""
    if backend is None:
        return None
    kt = backend == "kt"
    return {
        "by": "kt-kernel" if kt else "vllm",
        "threads": place.pool_threads if kt else None,
        "nodes": list(place.pools),
    }


def _unsupported_reason(
    backend: ExpertBackend, host: Host, catalogue: Catalogue, work: Workload, python: str
) -> str | None:
    """Say why the machine does not support a backend; None where it does."""
    plugin, model = work.engine.plugin, work.model
    needs = catalogue.format(RESIDENT[backend]).isa
    if host.isa is not None and not any(host.isa.issuperset(needed) for needed in needs):
        return f"the CPU has not {' or '.join('+'.join(needed) for needed in needs)}"
    if backend == "vllm":
        return None
    assert plugin is not None, "asked without a plugin"  # noqa: S101
    if python not in plugin.python:
        return f"Python {python}, kt-kernel wants {' or '.join(plugin.python)}"
    glibc = host.system.glibc
    if glibc is not None and number(glibc) < number(plugin.glibc):
        return f"glibc {glibc}, kt-kernel wants {plugin.glibc}"
    size = resident_bytes(catalogue, backend, model) or 0
    if numa.too_small(host, size, model.architecture.expert_width):
        return "a NUMA node is too small for its slice of the experts"
    return None


def _holds(host: Host, catalogue: Catalogue, work: Workload) -> bool:
    """Whether this is a machine with AMX whose memory would hold vLLM's own form of the experts."""
    size = resident_bytes(catalogue, "vllm", work.model) or 0
    beside = architecture.plain_bytes(work.model.architecture, work.weights_format)
    amx = host.isa is not None and "amx_int8" in host.isa
    return amx and size + beside + host.reserve_bytes < host.memory_bytes
