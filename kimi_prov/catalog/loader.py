"""The catalogue: each kind of rows is read when it is first used."""

from __future__ import annotations

import hashlib
import os
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from kimi_prov.catalog.broken import BrokenCombination, Combination, match_combination
from kimi_prov.catalog.clouds import CloudMachine
from kimi_prov.catalog.drivers import (
    Cuda,
    DriverPackages,
    DriverRelease,
    DriverRule,
    Drivers,
    Repository,
    TorchBuild,
)
from kimi_prov.catalog.engines import Engine, LoadTime, LoadWay
from kimi_prov.catalog.flags import Flag, FlagSet, FlagState, Verdict
from kimi_prov.catalog.groups import GroupRecipe
from kimi_prov.catalog.hardware import Cpu, Gpu
from kimi_prov.catalog.models import Draft, DraftTrial, Format, Model, UnservedModel
from kimi_prov.catalog.names import (
    index_rows,
    is_cut,
    list_name_forms,
    match_cpu,
    match_gpu,
    normalize_model,
    normalize_name,
    refuse_repository,
    refuse_unknown,
    refuse_unknown_part,
    refuse_unserved,
)
from kimi_prov.catalog.prices import (
    ApiPrice,
    Assumption,
    GpuHour,
    MachineHour,
    PartPrice,
    Prices,
    Purchase,
    Rent,
    StoragePrice,
)
from kimi_prov.catalog.pythons import Interpreter
from kimi_prov.catalog.row_files import HERE, TROUBLES, Files
from kimi_prov.catalog.servers import Server
from kimi_prov.catalog.systems import System
from kimi_prov.catalog.troubles import TroubleRow
from kimi_prov.catalog.versions import find_verdict
from kimi_prov.catalog.web import WebUi

if TYPE_CHECKING:
    from kimi_prov.errors import UserError

_T = TypeVar("_T")
# How far the memory of a driver may lie from that of the catalogue.
_MAX_CUT_DIFFERENCE = 0.03
LOCKS = HERE / "locks"
# Names the directory of a site's own rows; an environment variable, so that it reaches Ansible.
OVERLAY = "KIMI_PROV_CATALOG"


class Catalogue:
    """The catalogue's rows, with a site's rows over ours."""

    def __init__(self, overlay: Path | None = None) -> None:
        self.overlay = overlay
        self._files = Files(overlay)

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """Models that can be named."""
        return self._rows("models", Model)

    @cached_property
    def unserved(self) -> tuple[UnservedModel, ...]:
        """Models that no engine here serves yet."""
        return self._files.rows("models", "unserved", UnservedModel, ("name",))

    @cached_property
    def drafts(self) -> tuple[Draft, ...]:
        """Draft models for speculative decoding."""
        return self._files.rows("models", "drafts", Draft, ("name",))

    @cached_property
    def draft_trials(self) -> tuple[DraftTrial, ...]:
        """Measured pairs of runs, without a draft and with it."""
        return self._files.rows("models", "draft_trials", DraftTrial, ("id",))

    @cached_property
    def formats(self) -> tuple[Format, ...]:
        """Weight formats."""
        return self._rows("formats", Format)

    @cached_property
    def cpus(self) -> tuple[Cpu, ...]:
        """Processors."""
        return self._rows("cpus", Cpu)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs."""
        return self._rows("gpus", Gpu)

    @cached_property
    def servers(self) -> tuple[Server, ...]:
        """Servers that people buy."""
        return self._rows("servers", Server)

    @cached_property
    def engines(self) -> tuple[Engine, ...]:
        """Versions of engines; the first of a name and variant is the default."""
        return self._rows("engines", Engine, ("name", "variant", "version"))

    @cached_property
    def flags(self) -> tuple[Flag, ...]:
        """Flags that versions of an engine treat differently."""
        return self._files.rows("flags", "flags", Flag, ("engine", "flag", "value"))

    @cached_property
    def flag_sets(self) -> tuple[FlagSet, ...]:
        """Flags that versions of an engine all accept."""
        return self._files.rows("flags", "accepted", FlagSet, ("engine", "name"))

    @cached_property
    def systems(self) -> tuple[System, ...]:
        """Operating systems."""
        return self._rows("systems", System, ("id", "version"))

    @cached_property
    def pythons(self) -> tuple[Interpreter, ...]:
        """Bundled interpreters for distributions whose own does not fit; the newest first."""
        return self._rows("pythons", Interpreter, ("version", "build", "arch"))

    @cached_property
    def clouds(self) -> tuple[CloudMachine, ...]:
        """Machines that clouds rent by the hour."""
        return self._rows("clouds", CloudMachine)

    @cached_property
    def web(self) -> tuple[WebUi, ...]:
        """Web UIs to talk to the model; the last is installed."""
        return self._rows("web", WebUi, ("name", "variant", "version"))

    @cached_property
    def drivers(self) -> Drivers:
        """Drivers, CUDA and PyTorch."""
        return Drivers(
            cuda=self._files.rows("drivers", "cuda", Cuda, ("name",)),
            rules=self._files.rows("drivers", "rules", DriverRule, ("name",)),
            packages=self._files.rows("drivers", "packages", DriverPackages, ("name",)),
            torch=self._files.rows("drivers", "torch", TorchBuild, ("name",)),
            releases=self._files.rows("drivers", "releases", DriverRelease, ("name",)),
            repositories=self._files.rows("drivers", "repositories", Repository, ("name",)),
        )

    @cached_property
    def prices(self) -> Prices:
        """Prices of APIs, hours, GPUs and power."""
        return Prices(
            api=self._files.rows("prices", "api", ApiPrice, ("name",)),
            gpu_hour=self._files.rows("prices", "gpu_hour", GpuHour, ("name",)),
            rent=self._files.rows("prices", "rent", Rent, ("name",)),
            machine_hour=self._files.rows("prices", "machine_hour", MachineHour, ("name",)),
            storage=self._files.rows("prices", "storage", StoragePrice, ("name",)),
            purchase=self._files.rows("prices", "purchase", Purchase, ("name",)),
            parts=self._files.rows("prices", "parts", PartPrice, ("name",)),
            assumptions=self._files.rows("prices", "assumptions", Assumption, ("name",)),
        )

    @cached_property
    def broken(self) -> tuple[BrokenCombination, ...]:
        """Combinations that are known not to work."""
        return self._rows("broken", BrokenCombination, ("id",))

    @cached_property
    def groups(self) -> tuple[GroupRecipe, ...]:
        """Published layouts over several hosts."""
        return self._rows("groups", GroupRecipe, ("id",))

    @cached_property
    def load_ways(self) -> tuple[LoadWay, ...]:
        """Ways in which engines bring weights into GPUs."""
        return self._files.rows("engines", "load_ways", LoadWay, ("name",))

    @cached_property
    def load_times(self) -> tuple[LoadTime, ...]:
        """Measured loads of weights."""
        return self._files.rows("engines", "load_times", LoadTime, ("id",))

    @cached_property
    def troubles(self) -> tuple[TroubleRow, ...]:
        """Troubles that are known by the lines of logs."""
        return self._files.rows_of_folder(TROUBLES, TroubleRow, "id")

    @cached_property
    def locks(self) -> dict[str, str]:
        """Map a lock's file name to its SHA-256."""
        return {
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name, path in sorted(self._lock_files.items())
        }

    def lock(self, name: str) -> str:
        """Return the text of a lock file."""
        return self.lock_path(name).read_text(encoding="utf-8")

    def lock_path(self, name: str) -> Path:
        """Return the path of a lock file; a site's own replaces ours of that name."""
        return self._lock_files.get(name, LOCKS / name)

    @cached_property
    def _lock_files(self) -> dict[str, Path]:
        folders = [LOCKS, *([self.overlay / "locks"] if self.overlay else [])]
        return {path.name: path for folder in folders for path in folder.glob("*.txt")}

    def model(self, name: str) -> Model:
        """Find a model by name, alias or a repository of any published format.

        Raises UserError with the nearest names.
        """
        key = normalize_model(name)
        match = self._model_names.get(key) or self._model_names.get(key.replace("_", "-"))
        if match is None:
            for row in self.unserved:
                if row.name == key:
                    raise refuse_unserved(row.name, row.reason, row.instead)
            kin = [row for row in self.models if "/" in name and key.startswith(f"{row.name}-")]
            if kin:
                raise refuse_repository(name, max(kin, key=lambda row: len(row.name)).name)
            # A model of the lab has random weights: it is never what somebody meant.
            rows = {row.name: row.aliases for row in self.models if row.repo}
            raise refuse_unknown("model", name, rows)
        return match

    def draft(self, name: str) -> Draft:
        """Find a draft model by name or repository. Raises UserError with the nearest names."""
        key = name.strip().lower().rsplit("/", 1)[-1]
        match = index_rows(self.drafts, lambda row: (row.name,)).get(key)
        if match is None:
            raise refuse_unknown(
                "draft model", name, {row.name: (row.repo,) for row in self.drafts}
            )
        return match

    def format(self, name: str) -> Format:
        """Find a weight format by name or alias. Raises UserError with the nearest names."""
        key = name.strip().lower()
        match = self._format_names.get(key)
        if match is None:
            raise refuse_unknown(
                "weight format", name, {row.name: row.aliases for row in self.formats}
            )
        return match

    def cpu(self, name: str) -> Cpu:
        """Find a processor by any of its names. Raises UserError with the nearest names."""
        row = self.find_cpu(name)
        if row is None:
            raise self.unknown_cpu(name)
        return row

    def gpu(self, name: str, memory_bytes: int | None = None) -> Gpu:
        """Find a GPU by any of its names. Raises UserError with the nearest names."""
        row = self.find_gpu(name, memory_bytes)
        if row is None:
            raise self.unknown_gpu(name)
        return row

    def server(self, name: str) -> Server:
        """Find a server by name or alias. Raises UserError with the nearest names."""
        match = index_rows(
            self.servers, lambda row: [normalize_name(n) for n in (row.name, *row.aliases)]
        )
        row = match.get(normalize_name(name))
        if row is None:
            known = {row.name: (*row.aliases, row.title) for row in self.servers}
            raise refuse_unknown_part("system", name, known, "servers")
        return row

    def unknown_cpu(self, name: str) -> UserError:
        """Return the error for an unknown processor."""
        known = {row.name: row.aliases for row in self.cpus}
        return refuse_unknown_part("CPU", name, known, "cpus")

    def unknown_gpu(self, name: str) -> UserError:
        """Return the error for an unknown GPU."""
        known = {row.name: (*row.aliases, *row.machine_names) for row in self.gpus}
        return refuse_unknown_part("GPU", name, known, "gpus")

    def find_cpu(self, name: str) -> Cpu | None:
        """Find a processor by its name in use or in /proc/cpuinfo; None if unknown."""
        return self._cpu_names.get(normalize_name(name))

    def find_gpu(self, name: str, memory_bytes: int | None = None) -> Gpu | None:
        """Find a GPU by its name in use or its driver's; None if unknown.

        Memory distinguishes GPUs of the same name.
        """
        if is_cut(name):
            cut = self.find_cut_gpus(name, memory_bytes)
            return cut[0] if len(cut) == 1 else None
        hits = self._gpu_names.get(normalize_name(name))
        if memory_bytes is None or not hits:
            return hits[0] if hits else None
        return min(hits, key=lambda row: abs(row.memory_bytes - memory_bytes))

    def find_cut_gpus(self, name: str, memory_bytes: int | None) -> list[Gpu]:
        """List the GPUs that a name cut by nvidia-smi may be: "NVIDIA H100 80G..." and its memory.

        Of GPUs of one memory and one bandwidth, which are one card in several cases, the first.
        """
        start = name.rstrip(". \u2026").lower()
        rows = [
            row
            for row in self.gpus
            if any(known.lower().startswith(start) for known in row.machine_names)
            and (memory_bytes or 0) > 0
            and abs(row.memory_bytes - (memory_bytes or 0))
            <= _MAX_CUT_DIFFERENCE * row.memory_bytes
        ]
        kinds = {(row.bandwidth_gb_s, row.compute_capability) for row in rows}
        return rows[:1] if len(kinds) == 1 else rows

    def match_cpu(self, text: str) -> Cpu | None:
        """Find the processor that a seller's text names, with clock, cores or socket beside it."""
        exact = self.find_cpu(text)
        return exact or match_cpu(text, self.cpus, _list_cpu_names)

    def match_gpu(self, text: str, *, any_size: bool = False) -> Gpu | None:
        """Find the GPU that a seller's text names: "NVIDIA HGX H200 141GB SXM5".

        `any_size`: also one whose memory is not that of the text.
        """
        exact = self.find_gpu(text)
        return exact or match_gpu(
            text, self.gpus, _list_gpu_names, lambda row: row.memory_gb, any_size=any_size
        )

    def engine(self, name: str, variant: str, version: str | None = None) -> Engine | None:
        """Find an engine's default version, or the given one; None without one."""
        rows = [e for e in self.engines if (e.name, e.variant) == (name, variant)]
        return next((e for e in rows if version in (None, e.version)), None)

    def system(self, name: str, version: str) -> System | None:
        """Find an operating system; None if unknown."""
        return next((s for s in self.systems if (s.id, s.version) == (name, version)), None)

    def flag(self, engine: str, version: str, flag: str, value: str | None = None) -> FlagState:
        """Return how a version of an engine treats a flag.

        Between two checked versions that agree, it is their answer; else "unknown".
        """
        name = "--" + flag.lstrip("-").split("=", 1)[0].replace("_", "-")
        rows = [row for row in self.flags if (row.engine, row.flag) == (engine, name)]
        row = next((r for r in rows if r.value is not None and r.value == value), None)
        row = row or next((r for r in rows if r.value is None), None)
        if row is not None:
            status: Verdict | Literal["unknown"] = find_verdict(row.versions, version) or "unknown"
            return FlagState(name, status, row.replacement, row.reason, row.source, row.becomes)
        for flag_set in self.flag_sets:
            if flag_set.engine == engine and name in flag_set.flags:
                all_of_them: dict[str, Verdict] = dict.fromkeys(flag_set.versions, "accepted")
                verdict = find_verdict(all_of_them, version) or "unknown"
                return FlagState(name, verdict, source=flag_set.source)
        return FlagState(name, "unknown")

    def broken_with(self, combination: Combination) -> tuple[BrokenCombination, ...]:
        """Return the broken combinations that match this one."""
        rows = self._broken_by_engine.get(combination.engine, ())
        return tuple(row for row in rows if match_combination(row, combination))

    @cached_property
    def _broken_by_engine(self) -> dict[str, list[BrokenCombination]]:
        by_engine: dict[str, list[BrokenCombination]] = {}
        for row in self.broken:
            by_engine.setdefault(row.engine, []).append(row)
        return by_engine

    @cached_property
    def _model_names(self) -> dict[str, Model]:
        return index_rows(
            self.models,
            lambda row: (
                row.name,
                *row.aliases,
                *(other.repo.lower().rsplit("/", 1)[-1] for other in row.published),
            ),
        )

    @cached_property
    def _format_names(self) -> dict[str, Format]:
        return index_rows(self.formats, lambda row: (row.name, *row.aliases))

    @cached_property
    def _cpu_names(self) -> dict[str, Cpu]:
        by_name = index_rows(
            self.cpus, lambda row: [normalize_name(n) for n in (row.name, *row.aliases)]
        )
        return {**index_rows(self.cpus, lambda row: list_name_forms(row.name)), **by_name}

    @cached_property
    def _gpu_names(self) -> dict[str, list[Gpu]]:
        by_name: dict[str, list[Gpu]] = {}
        for row in self.gpus:
            for name in {normalize_name(n) for n in (row.name, *row.aliases, *row.machine_names)}:
                by_name.setdefault(name, []).append(row)
        return by_name

    def _rows(self, file: str, kind: type[_T], key: tuple[str, ...] = ("name",)) -> tuple[_T, ...]:
        return self._files.rows(file, file, kind, key)


def _list_cpu_names(row: Cpu) -> tuple[str, ...]:
    return (row.name, row.name.rsplit(" ", 1)[-1], *row.aliases)


def _list_gpu_names(row: Gpu) -> tuple[str, ...]:
    return (row.name, *row.aliases, *row.machine_names)


def load_catalogue(overlay: Path | None = None) -> Catalogue:
    """Return the catalogue, with the rows of `overlay` (or of KIMI_PROV_CATALOG) over ours.

    A kind is read when it is first used; an invalid row raises UserError naming file, line and
    key.
    """
    named = os.environ.get(OVERLAY)
    return _load(overlay or (Path(named) if named else None))


@cache
def _load(overlay: Path | None) -> Catalogue:
    return Catalogue(overlay)
