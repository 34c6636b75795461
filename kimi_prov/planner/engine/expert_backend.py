"""Choose the backend of 4-bit experts on a machine without GPUs: own kernel, kt-kernel, vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.catalog import model_bytes
from kimi_prov.catalog.versions import parse_version
from kimi_prov.contract.cpu_lists import parse_list
from kimi_prov.planner.decisions import GIB, ExpertSlices
from kimi_prov.planner.placement import numa

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.engines import Plugin
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Model
    from kimi_prov.contract.documents.plan.engine import ExpertsPlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Dense, ExpertBackend, Placement, Workload
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

# The catalogue's name of each backend's form of the experts in memory. The first that a machine
# supports is chosen: the order is by measurements (docs/guides/kt-experts.md).
RESIDENT_FORMATS: dict[ExpertBackend, str] = {
    "native": "native-int4",
    "kt": "rawint4",
    "vllm": "vllm-cpu-int4",
}
_UNWANTED = "not wanted (kimi_experts)"
# The compiler with which the own kernel is built during installation.
PACKAGES = ("gcc", "libc6-dev")
_COST = "0.78 bytes a weight in memory, and 57 to 100 minutes of repacking at every start of Kimi"
# Tokens of one call of kt-kernel, which decide the size of its scratch memory.
CHUNK_TOKENS = 1024
# Bytes of a dense weight in int8: a scale of four bytes for 128.
INT8_BYTES = 1 + 4 / 128
# With fewer cores other programs share them: threads that always yield would not get on.
_OWN_CORES = 8


class Backends(NamedTuple):
    """The expert backends to choose among, what is asked for, and why others are not supported.

    `kept`: one that only a machine that serves by it takes.
    """

    able: tuple[ExpertBackend, ...] = ()
    requested: ExpertBackend | None = None
    unsupported: Mapping[ExpertBackend, str | None] = {}
    kept: ExpertBackend | None = None

    @property
    def supported(self) -> list[ExpertBackend]:
        """All that the machine supports."""
        return [name for name, reason in self.unsupported.items() if reason is None]


def list_backends(
    host: Host,
    settings: Settings,
    catalogue: Catalogue,
    work: Workload,
    python: str,
    findings: Findings,
) -> Backends:
    """List the expert backends to choose among; none where no plugin is needed, or none works.

    `python`: the engine's version of Python, such as "3.11". vLLM's own, which repacks for an hour
    at each start, is on the list only where nothing else is, or where it is asked for.
    """
    engine, model, plugin = work.engine, work.model, work.engine.plugin
    if plugin is None or work.weights_format not in plugin.formats:
        return Backends()
    unsupported = {
        backend: _find_unsupported_reason(backend, host, catalogue, work, python)
        for backend in RESIDENT_FORMATS
    }
    requested: ExpertBackend | None = settings.experts if settings.experts != "auto" else None
    supported = [backend for backend in RESIDENT_FORMATS if unsupported[backend] is None]
    if requested is not None and requested not in supported:
        findings.add(
            "experts.way",
            names={"way": requested},
            observed=str(unsupported[requested]),
            required=f"kimi_experts: {supported[0]}" if supported else "other hardware",
            fix="set kimi_experts to auto" if supported else "choose a machine with AVX512_BF16",
        )
        return Backends((requested,), requested, unsupported)
    if not supported:
        findings.add(
            "experts.way",
            wording="none",
            names={"engine": engine.name, "version": engine.version, "model": model.name},
            observed="; ".join(str(text) for text in unsupported.values()),
            required="AVX2, and for several NUMA nodes a C library of 2.35, or AVX512_BF16",
            fix="use Debian 12 or newer on a CPU with AVX512, or GPUs",
        )
        return Backends((), None, unsupported)
    if requested is not None:
        return Backends((requested,), requested, unsupported)
    quick = [backend for backend in supported if backend != "vllm"] or supported
    serving = settings.served.get("experts") if settings.served else None
    kept = next((name for name in supported if name == serving and name not in quick), None)
    return Backends(tuple(quick), None, unsupported, kept)


def report_backend(
    host: Host,
    catalogue: Catalogue,
    work: Workload,
    backends: Backends,
    backend: ExpertBackend | None,
    findings: Findings,
) -> None:
    """Report what the chosen backend costs."""
    unsupported, requested = backends.unsupported, backends.requested
    if backend is None or unsupported[backend] is not None:
        return
    if backend == "vllm":
        findings.add(
            "experts.fallback",
            observed=f"the own kernel: {unsupported['native'] or _UNWANTED}; "
            f"kt-kernel: {unsupported['kt'] or _UNWANTED}",
            required=_COST,
            fix="fix what keeps kt-kernel from it"
            if requested is None
            else "set kimi_experts to auto",
        )
    if backend == "kt":
        faster = "vllm" in backends.supported and _has_room_for_vllm_experts(host, catalogue, work)
        _report_kt_kernel(host, findings, faster=faster)


def _report_kt_kernel(host: Host, findings: Findings, *, faster: bool) -> None:
    """Report the costs of kt-kernel. `faster`: vLLM's own kernel would have enough memory."""
    if faster:
        findings.add(
            "experts.faster",
            observed="kt-kernel chosen: 0.625 bytes a weight, and a start in minutes",
            required=_COST,
            fix="set kimi_experts to vllm where that memory and start are no matter",
        )
    if host.isa is not None and "avx512bw" not in host.isa and not host.arm:
        findings.add(
            "experts.avx2",
            observed=f"{host.cpu_model}: no AVX512",
            required="AVX512F and AVX512BW",
            fix="use a CPU with AVX512; on a virtual machine, pass the host's CPU through",
        )


def choose_dense_format(
    settings: Settings, backend: ExpertBackend | None, findings: Findings
) -> Dense:
    """Choose how the weights beside the routed experts are held; int8 only if it is set."""
    if settings.dense_weights != "int8":
        return "bf16"
    if backend in ("native", "kt"):
        return "int8"
    findings.add(
        "experts.dense_way",
        observed="kimi_dense_weights: int8; the routed experts: "
        + ("without this project's plugin" if backend is None else "vLLM's own"),
        required="INT4 experts by the own kernel or kt-kernel, on processors alone",
        fix="set kimi_dense_weights to auto",
    )
    return "bf16"


def list_spans(
    host: Host,
    settings: Settings,
    catalogue: Catalogue,
    work: Workload,
    backend: ExpertBackend | None,
) -> list[bool]:
    """List whether an engine may be on one NUMA node, and over all: the own kernel cuts weights.

    Of weights in int8 each node then reads its part, all at once. Those in bf16 are vLLM's, on one
    node: so over all nodes only where none holds the engine.
    """
    apart = not settings.auto("instances") and int(settings.instances) > 1
    if backend != "native" or len(host.nodes) < 2 or settings.hosts_per_model > 1 or apart:
        return [False]
    size = _count_engine_bytes(catalogue, work)
    usable = [numa.count_usable_bytes(node) for node in host.nodes]
    if size > max(usable):
        return [True]
    even = size <= min(usable) * len(usable)
    return [False, True] if work.dense == "int8" and even else [False]


def describe_backend(backend: ExpertBackend) -> str:
    """Describe the backend for the plan's `engine.reason`."""
    return {
        "native": "this project's kernel computes the INT4 experts in vLLM's own threads, by a "
        "plugin (at every size measured faster than kt-kernel and than vLLM's own)",
        "kt": "kt-kernel computes the INT4 experts from the checkpoint's own files, by a plugin "
        "inside vLLM",
        "vllm": f"vLLM's own INT4 experts, opened by a plugin ({_COST})",
    }[backend]


def count_resident_bytes(
    catalogue: Catalogue, backend: ExpertBackend | None, model: Model
) -> int | None:
    """Return the bytes of the 4-bit experts in memory; None where they stay as in the files."""
    if backend is None:
        return None
    routed = model_bytes.count_routed_params(model.architecture)
    return round(routed * catalogue.format(RESIDENT_FORMATS[backend]).expert_bytes)


def count_saved_bytes(
    dense: Dense, backend: ExpertBackend | None, model: Model, hosts: int = 1
) -> int:
    """Return the bytes saved by int8 in place of bf16, on each of `hosts` that share weights.

    The own kernel holds some weights again for steps in one call, which one host alone has.
    """
    if dense == "bf16":
        return 0
    saved = round(model_bytes.count_int8_params(model.architecture) * (2 - INT8_BYTES)) // hosts
    if backend == "native" and hosts == 1:
        saved -= model_bytes.count_step_copies(model.architecture)
    return saved


def measure_slices(
    host: Host,
    catalogue: Catalogue,
    backend: ExpertBackend | None,
    model: Model,
    *,
    over_nodes: bool = False,
) -> ExpertSlices | None:
    """Return how the experts are on nodes: in slices, or in one piece."""
    size = count_resident_bytes(catalogue, backend, model)
    if backend is None or size is None:
        return None
    count = len(host.nodes) if over_nodes else 1
    if backend == "kt":
        count = numa.count_pools(host, model.architecture.expert_width)
    loading = _count_loading_bytes(catalogue, backend, model)
    return ExpertSlices(size, count, loading, on_one_node=backend == "native" and not over_nodes)


def _count_loading_bytes(catalogue: Catalogue, backend: ExpertBackend, model: Model) -> int:
    """Return the further bytes while a layer is loaded: its slices, or its repacked form.

    vLLM's own needs about 27 GiB for a layer of Kimi's; the own kernel reads it from the files.
    """
    if backend == "native":
        return 0
    shape = model.architecture
    layer = shape.experts * model_bytes.count_expert_params(shape)
    return round(layer * (catalogue.format("int4").expert_bytes if backend == "kt" else 1.7))


def check_instances(settings: Settings, findings: Findings) -> None:
    """Report more engines than the one whose experts are sliced over the nodes."""
    if not settings.auto("instances") and int(settings.instances) > 1:
        findings.add(
            "experts.instances",
            observed=f"kimi_instances: {settings.instances}",
            required="one engine where kt-kernel computes the experts",
            fix="set kimi_instances to 1 or auto",
        )


def make_environment(backend: ExpertBackend, placement: Placement, dense: Dense) -> dict[str, str]:
    """Return the plugin's variables."""
    beside = {"KIMI_DENSE": dense} if dense != "bf16" else {}
    if backend != "kt":
        return {"KIMI_EXPERTS": backend, **beside}
    return {
        **beside,
        "KIMI_EXPERTS": backend,
        "KIMI_KT_CHUNK": str(CHUNK_TOKENS),
        "KIMI_KT_IDLE": "1" if placement.pool_threads >= _OWN_CORES else "0",
        "KIMI_KT_NODES": ",".join(map(str, placement.pools)),
        "KIMI_KT_THREADS": str(placement.pool_threads),
        # vLLM's threads stay awake for this time between operations, and no longer, so that the
        # pools get the shared cores: the best of ten measured values
        # (docs/guides/kt-experts.md).
        "GOMP_SPINCOUNT": "5000",
    }


def make_document(
    backend: ExpertBackend | None, placement: Placement, dense: Dense
) -> ExpertsPlan | None:
    """Return the plan's `experts`."""
    if backend is None:
        return None
    return {
        "by": "kt-kernel" if backend == "kt" else backend,
        "threads": {"kt": placement.pool_threads, "native": len(parse_list(placement.threads))}.get(
            backend
        ),
        "nodes": list(placement.nodes if backend == "native" else placement.pools),
        "dense_weights": dense,
    }


def _find_unsupported_reason(
    backend: ExpertBackend, host: Host, catalogue: Catalogue, work: Workload, python: str
) -> str | None:
    """Return why the machine does not support a backend; None where it does."""
    plugin, model = work.engine.plugin, work.model
    needs = catalogue.format(RESIDENT_FORMATS[backend]).isa
    if host.isa is not None and not any(host.isa.issuperset(needed) for needed in needs):
        return f"the CPU has not {' or '.join('+'.join(needed) for needed in needs)}"
    if backend in ("native", "vllm"):
        return None
    assert plugin is not None, "asked without a plugin"  # noqa: S101
    return _find_kt_kernel_reason(host, catalogue, plugin, model, python)


def _find_kt_kernel_reason(
    host: Host, catalogue: Catalogue, plugin: Plugin, model: Model, python: str
) -> str | None:
    if python not in plugin.python:
        return f"Python {python}, kt-kernel wants {' or '.join(plugin.python)}"
    glibc = host.system.glibc
    if glibc is not None and parse_version(glibc) < parse_version(plugin.glibc):
        return f"glibc {glibc}, kt-kernel wants {plugin.glibc}"
    size = count_resident_bytes(catalogue, "kt", model) or 0
    if numa.is_node_too_small(host, size, model.architecture.expert_width):
        return "a NUMA node is too small for its slice of the experts"
    return None


def _count_engine_bytes(catalogue: Catalogue, work: Workload) -> int:
    """Return the bytes of an engine with the own kernel's experts and the smallest cache."""
    size = count_resident_bytes(catalogue, "native", work.model) or 0
    beside = model_bytes.count_plain_bytes(work.model.architecture, work.weights_format)
    beside -= count_saved_bytes(work.dense, "native", work.model)
    return size + beside + work.engine.overhead_bytes + GIB


def _has_room_for_vllm_experts(host: Host, catalogue: Catalogue, work: Workload) -> bool:
    """Whether this is a machine with AMX whose memory would hold vLLM's own form of the experts."""
    size = count_resident_bytes(catalogue, "vllm", work.model) or 0
    beside = model_bytes.count_plain_bytes(work.model.architecture, work.weights_format)
    amx = host.isa is not None and "amx_int8" in host.isa
    return amx and size + beside + host.reserve_bytes < host.memory_bytes
