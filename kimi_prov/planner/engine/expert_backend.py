"""Who computes 4-bit experts on a machine without GPUs: kt-kernel inside vLLM, or vLLM itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kimi_prov.planner.memory import architecture, numa
from kimi_prov.planner.memory.cpu import Slices

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Catalogue, Engine, Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.memory.numa import Placement
    from kimi_prov.planner.settings.parsing import Wishes

Way = Literal["kt", "vllm"]
# How the catalogue calls the form in which each way keeps the experts in memory.
RESIDENT: dict[Way, str] = {"kt": "rawint4", "vllm": "vllm-cpu-int4"}
_COST = "0.78 bytes a weight in memory, and 57 to 100 minutes of repacking at every start of Kimi"
_PAGE = "docs/kt-experts.md"
# Tokens that kt-kernel takes in one call: its scratch memory is of that size.
CHUNK = 1024
# Fewer cores are shared with others: threads that give way to everybody would not get on.
_OWN_CORES = 8


class Work(NamedTuple):
    """What is to be served by what: engine, model, its format, and the engine's Python ("3.11")."""

    engine: Engine
    model: Model
    weights_format: str
    python: str


def choose(
    host: Host,
    wishes: Wishes,
    catalogue: Catalogue,
    work: Work,
    findings: Findings,
) -> Way | None:
    """Choose who computes them; None where the engine does it without the plugin, or nobody can."""
    engine, model, plugin = work.engine, work.model, work.engine.plugin
    if plugin is None or work.weights_format not in plugin.formats:
        return None
    hindered = {way: _hindrance(way, host, catalogue, work) for way in RESIDENT}
    wanted: Way | None = None if wishes.auto("experts") else wishes.experts
    able = [way for way in RESIDENT if hindered[way] is None]
    if wanted is not None and wanted not in able:
        findings.blocker(
            "experts.way",
            f"This machine cannot compute the experts as kimi_experts says: {wanted}",
            observed=str(hindered[wanted]),
            required=f"kimi_experts: {able[0]}" if able else "other hardware",
            fix="set kimi_experts to auto" if able else "choose a machine with AVX512_BF16",
            source=_PAGE,
        )
        return wanted
    if not able:
        findings.blocker(
            "experts.way",
            f"{engine.name} {engine.version} cannot compute {model.name}'s experts here",
            observed="; ".join(str(text) for text in hindered.values()),
            required="AVX2 and a C library of 2.35 for kt-kernel, or AVX512_BF16 for vLLM's own",
            fix="use Debian 12 or newer on a CPU with AVX512, or GPUs",
            source=_PAGE,
        )
        return None
    way = wanted or able[0]
    if way == "vllm":
        findings.warning(
            "experts.fallback",
            "vLLM's own INT4 experts serve the model, at a price",
            observed=f"kt-kernel: {hindered['kt'] or 'not wanted (kimi_experts)'}",
            required=_COST,
            fix="set kimi_experts to auto"
            if hindered["kt"] is None
            else "mend what keeps kt-kernel from it",
            source=_PAGE,
        )
    elif wanted is None and "vllm" in able and _holds(host, catalogue, work):
        findings.info(
            "experts.faster",
            "Once started, vLLM's own experts may answer faster: they read weights with AMX",
            observed="kt-kernel chosen: 0.625 bytes a weight, and a start in minutes",
            required=_COST,
            fix="set kimi_experts to vllm where that memory and start are no matter",
            source="16 cores with AMX, whole layers of Kimi, 2026-11-21: docs/kt-experts.md",
        )
    if way == "kt" and host.isa is not None and "avx512bw" not in host.isa:
        findings.warning(
            "experts.avx2",
            "kt-kernel computes the experts with AVX2: right, and several times slower",
            observed=f"{host.facts['cpu'].get('model')}: no AVX512",
            required="AVX512F and AVX512BW",
            fix="use a CPU with AVX512; on a virtual machine, pass the host's CPU through",
            source="kt-kernel 0.7.2 measured: 7 times slower at batch 1, 4 times at 64",
        )
    return way


def reason(way: Way) -> str:
    """Say why, for the plan's `engine.reason`."""
    return {
        "kt": "kt-kernel computes the INT4 experts from the checkpoint's own files, by a plugin "
        "inside vLLM",
        "vllm": f"vLLM's own INT4 experts, opened by a plugin ({_COST})",
    }[way]


def resident_bytes(catalogue: Catalogue, way: Way | None, model: Model) -> int | None:
    """Bytes that the 4-bit experts take in memory; None where they stay as the files have them."""
    if way is None:
        return None
    routed = architecture.routed_params(model.architecture)
    return round(routed * catalogue.format(RESIDENT[way]).expert_bytes)


def slices(host: Host, catalogue: Catalogue, way: Way | None, model: Model) -> Slices | None:
    """Give how the experts lie on the nodes: kt-kernel's in equal slices, vLLM's in one piece."""
    size = resident_bytes(catalogue, way, model)
    if way is None or size is None:
        return None
    count = numa.pool_count(host, model.architecture.expert_width) if way == "kt" else 1
    return Slices(size, count, _loading_bytes(catalogue, way, model))


def _loading_bytes(catalogue: Catalogue, way: Way, model: Model) -> int:
    """Bytes needed once more while a layer is loaded: its slices, or its repacked form.

    vLLM's own takes about 27 GiB for a layer of Kimi's.
    """
    shape = model.architecture
    layer = shape.experts * architecture.expert_params(shape)
    return round(layer * (catalogue.format("int4").expert_bytes if way == "kt" else 1.7))


def instances(wishes: Wishes, findings: Findings) -> int:
    """Count the engines: one, whose experts lie in slices over the nodes."""
    if not wishes.auto("instances") and int(wishes.instances) > 1:
        findings.blocker(
            "experts.instances",
            "One engine's experts lie over all nodes: there is no room for a second",
            observed=f"kimi_instances: {wishes.instances}",
            required="one engine where kt-kernel computes the experts",
            fix="set kimi_instances to 1 or auto",
            source=_PAGE,
        )
    return 1


def environment(way: Way, place: Placement) -> dict[str, str]:
    """Give what the plugin reads."""
    if way == "vllm":
        return {"KIMI_EXPERTS": way}
    return {
        "KIMI_EXPERTS": way,
        "KIMI_KT_CHUNK": str(CHUNK),
        "KIMI_KT_IDLE": "1" if place.pool_threads >= _OWN_CORES else "0",
        "KIMI_KT_NODES": ",".join(map(str, place.pools)),
        "KIMI_KT_THREADS": str(place.pool_threads),
        # So long vLLM's threads stay awake from one operation to the next, and no longer, so that
        # the pools get the shared cores: the best of ten ways measured (docs/kt-experts.md).
        "GOMP_SPINCOUNT": "5000",
    }


def document(way: Way | None, place: Placement) -> dict[str, Any] | None:
    """Give the plan's `experts`."""
    if way is None:
        return None
    kt = way == "kt"
    return {
        "by": "kt-kernel" if kt else "vllm",
        "threads": place.pool_threads if kt else None,
        "nodes": list(place.pools),
    }


def _hindrance(way: Way, host: Host, catalogue: Catalogue, work: Work) -> str | None:
    """Say what keeps the machine from it."""
    plugin, model = work.engine.plugin, work.model
    needs = catalogue.format(RESIDENT[way]).isa
    if host.isa is not None and not any(host.isa.issuperset(needed) for needed in needs):
        return f"the CPU has not {' or '.join('+'.join(needed) for needed in needs)}"
    if way == "vllm":
        return None
    assert plugin is not None, "asked without a plugin"  # noqa: S101
    if work.python not in plugin.python:
        return f"Python {work.python}, kt-kernel wants {' or '.join(plugin.python)}"
    glibc = host.facts["host"].get("glibc")
    if glibc is not None and _numbers(glibc) < _numbers(plugin.glibc):
        return f"glibc {glibc}, kt-kernel wants {plugin.glibc}"
    size = resident_bytes(catalogue, way, model) or 0
    if numa.too_small(host, size, model.architecture.expert_width):
        return "a NUMA node is too small for its slice of the experts"
    return None


def _holds(host: Host, catalogue: Catalogue, work: Work) -> bool:
    """Whether this is a machine with AMX whose memory would hold vLLM's own form of the experts."""
    size = resident_bytes(catalogue, "vllm", work.model) or 0
    beside = architecture.plain_bytes(work.model.architecture, work.weights_format)
    amx = host.isa is not None and "amx_int8" in host.isa
    return amx and size + beside + host.reserve_bytes < host.memory_bytes


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
