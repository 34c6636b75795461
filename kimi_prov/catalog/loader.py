"""Reads the catalogue, refusing rows that are not whole; unknown names get the nearest ones."""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from kimi_prov.errors import ExitCode, UserError

_HERE = Path(__file__).resolve().parent
LOCKS = _HERE / "locks"
_T = TypeVar("_T")
# The same loader in C where PyYAML was built with it: ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Architecture:
    """Dimensions of a model with MLA attention and routed experts."""

    class_name: str
    layers: int
    dense_layers: int
    hidden: int
    dense_width: int
    experts: int
    experts_per_token: int
    shared_experts: int
    expert_width: int
    heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    vocab: int
    vision_params: int


@dataclass(frozen=True)
class Model:
    """A model that can be asked for. `other_bytes`: tokenizer and other small files."""

    name: str
    architecture: Architecture
    context: int
    native_format: str
    formats: tuple[str, ...]
    other_bytes: int
    source: str
    confidence: str
    repo: str | None = None
    revision: str | None = None
    aliases: tuple[str, ...] = ()
    random_weights: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Engine:
    """One version of an engine, what it needs and what it takes. Sizes in bytes.

    `overhead_bytes` is host memory beside weights and cache, `gpu_overhead_bytes` the same of
    each GPU; `install_peak_bytes` the disk room that installing takes.
    """

    name: str
    variant: str
    version: str
    distribution: str
    module: str
    python: tuple[str, ...]
    glibc: str
    arch: tuple[str, ...]
    isa_any: tuple[str, ...]
    formats: tuple[str, ...]
    architectures: tuple[str, ...]
    installed_bytes: int
    install_peak_bytes: int
    overhead_bytes: int
    source: str
    confidence: str
    numa_bind_flags: bool = False
    mla: dict[str, int] | None = None
    driver_branch: int | None = None
    gpu_memory_utilization: float | None = None
    gpu_overhead_bytes: int = 0

    def lock_name(self, python: str) -> str:
        """File name of the lock for a Python such as "3.11"."""
        tag = "cp" + python.replace(".", "")
        return f"{self.name}-{self.variant}-{self.version}-{tag}.txt"


@dataclass(frozen=True)
class System:
    """An operating system; `proven` where the tests provision one."""

    id: str
    version: str
    proven: bool
    source: str


@dataclass(frozen=True)
class Catalogue:
    """Everything known beforehand. `locks` maps a lock's file name to its SHA-256."""

    models: tuple[Model, ...]
    engines: tuple[Engine, ...]
    systems: tuple[System, ...]
    locks: dict[str, str]

    def model(self, name: str) -> Model:
        """Find a model by name, alias or repository; refuses others with the nearest names."""
        wanted = name.strip().lower().rsplit("/", 1)[-1]
        known = {key: row for row in self.models for key in (row.name, *row.aliases)}
        if wanted in known:
            return known[wanted]
        raise unknown("model", name, [row.name for row in self.models], wanted)

    def engine(self, name: str, variant: str, version: str | None = None) -> Engine | None:
        """Find an engine's default version, or the one asked for; None where there is none."""
        rows = [e for e in self.engines if (e.name, e.variant) == (name, variant)]
        return next((e for e in rows if version in (None, e.version)), None)


def unknown(kind: str, name: str, names: list[str], wanted: str | None = None) -> UserError:
    """Say that a name is not known, with the nearest ones first."""
    near = difflib.get_close_matches(wanted or name, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return UserError(f"unknown {kind} {name!r}; {hint}", fix=f"choose one of: {', '.join(names)}")


@cache
def load() -> Catalogue:
    """Read the catalogue that the package carries. Raises UserError naming file and row."""
    models = _rows("models")
    return Catalogue(
        models=tuple(_model(row, where) for row, where in models),
        engines=tuple(_make(Engine, row, where) for row, where in _rows("engines")),
        systems=tuple(_make(System, row, where) for row, where in _rows("systems")),
        locks={
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(LOCKS.glob("*.txt"))
        },
    )


def _rows(kind: str) -> list[tuple[dict[str, Any], str]]:
    path = _HERE / f"{kind}.yaml"
    document = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506
    return [(row, f"{path.name}: {kind}[{n}]") for n, row in enumerate(document[kind])]


def _model(row: dict[str, Any], where: str) -> Model:
    shape = dict(row.get("architecture") or {})
    shape["class_name"] = shape.pop("class", None)
    architecture = _make(Architecture, shape, f"{where}.architecture")
    return _make(Model, {**row, "architecture": architecture}, where)


def _make(kind: type[_T], row: dict[str, Any], where: str) -> _T:
    """Build a row's record; keys that are missing or unknown are an error of the catalogue."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    stray = sorted(set(row) - known)
    if stray:
        raise _broken(where, f"unknown key {stray[0]!r}")
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in row.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise _broken(where, str(error).split(": ", 1)[-1]) from error


def _broken(where: str, problem: str) -> UserError:
    return UserError(
        f"the catalogue is broken: {where}: {problem}",
        fix="reinstall kimi-prov, or mend that row",
        exit_code=ExitCode.FAILED,
    )
