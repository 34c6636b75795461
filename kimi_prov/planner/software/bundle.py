"""What a machine needs of an offline bundle, and what one lacks for it.

Decides: what an offline bundle holds for a machine.
Held by: tests/unit/planner/software/test_bundle_needs.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, cast

from kimi_prov.planner.software import packages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.bundle import Bundle
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan, Plan
    from kimi_prov.contract.documents.plan.software import BroughtPython
    from kimi_prov.contract.documents.plan.weights import DraftWeights, WeightsPlan

# What Ansible's module for apt installs where it is missing.
_OF_ANSIBLE = ("python3-apt",)
_LOCK_PYTHON = re.compile(r"-cp(\d)(\d+)\.txt$")
DEFAULT_ARCH = "x86_64"
_DEFAULT_PYTHON = "3.11"


@dataclass(frozen=True, order=True)
class LockNeed:
    """A lock whose wheels are installed for one interpreter; `python` such as "3.11"."""

    name: str
    python: str
    arch: str
    glibc: str | None


@dataclass(frozen=True, order=True)
class WeightsNeed:
    """The weights of a model, or of a draft, from `source`; `variable` names another one.

    `folder` is where a bundle has them.
    """

    model: str
    source: str
    revision: str
    size_bytes: int
    folder: str
    variable: str

    @property
    def is_local(self) -> bool:
        """Whether a disk of the machine has them."""
        return self.source.startswith("file://")


@dataclass(frozen=True)
class Needs:
    """What one machine installs. `system` is such as "debian-12"; `glibc` None is unknown.

    `unsupported`: what no bundle holds. `weights`: those that come over the network.
    """

    system: str
    arch: str
    locks: tuple[LockNeed, ...]
    python: BroughtPython | None
    packages: tuple[str, ...]
    unsupported: tuple[str, ...] = ()
    weights: tuple[WeightsNeed, ...] = ()


def list_needs(plan: Plan, facts: Facts, *, installed: bool = True) -> Needs:
    """List what the plan installs; with `installed` without what the facts show as installed."""
    host = facts["host"]
    arch, glibc = host.get("arch") or DEFAULT_ARCH, host.get("glibc")
    have = facts["kimi"] if installed else {}
    release = host["os"]
    installation = plan.get("installation")
    python = installation["python"] if installation else None
    if python and python["name"] in (have.get("pythons") or ()):
        python = None
    names = packages.list_missing(plan, facts) if installed else plan["packages"]
    return Needs(
        system=f"{release['id']}-{release['version_id']}",
        arch=arch,
        locks=tuple(
            LockNeed(name, _find_python(name, plan), arch, glibc)
            for name in dict.fromkeys(_list_locks(plan, have))
        ),
        python=python,
        packages=tuple(sorted({*names, *_OF_ANSIBLE})) if names else (),
        unsupported=tuple(_list_unsupported(plan)),
        weights=tuple(row for row in list_weights(plan) if not row.is_local),
    )


def get_serving(plan: Plan) -> MachinePlan | None:
    """Return the plan of a machine that serves; None for a gateway's."""
    return cast("MachinePlan", plan) if "engine" in plan else None


def _list_locks(plan: Plan, have: object) -> Iterable[str]:
    """List the locks of environments that are not there yet, uv's own first."""
    known = cast("dict[str, list[str]]", have)
    locks: list[str] = []
    machine = get_serving(plan)
    if machine is not None:
        engine, stacks = machine["engine"], machine["watchdog"]["stacks"]
        if engine["env_name"] not in (known.get("engine_envs") or ()):
            locks += engine.get("locks") or [engine["lock"]]
        if stacks and stacks["env_dir"].rpartition("/")[2] not in (known.get("tools") or ()):
            locks.append(stacks["lock"])
    page = plan.get("web")
    if page and page["env_name"] not in (known.get("web_envs") or ()):
        locks.append(page["lock"])
    installation = plan.get("installation")
    return [installation["uv_lock"], *locks] if installation and locks else locks


def _find_python(lock: str, plan: Plan) -> str:
    """Return the Python that a lock is installed for; the engine's where its wheels fit any."""
    if match := _LOCK_PYTHON.search(lock):
        return f"{match[1]}.{match[2]}"
    machine = get_serving(plan)
    return machine["engine"]["python_version"] if machine else _DEFAULT_PYTHON


def _list_unsupported(plan: Plan) -> list[str]:
    driver = plan["driver"]
    if driver["action"] != "install":
        return []
    return [f"NVIDIA's driver {driver['version'] or ''}".rstrip()]


def list_weights(plan: Plan) -> list[WeightsNeed]:
    """List the weights that a machine reads: the model's, and those of its draft."""
    machine = get_serving(plan)
    if machine is None:
        return []
    weights, name = machine["weights"], machine["model"]["name"]
    rows = [_make_weights(name, weights, "kimi_weights_source")]
    draft = weights.get("draft")
    if draft:
        name = PurePosixPath(draft["dir"]).parent.name
        rows.append(_make_weights(name, draft, "kimi_draft_weights_source"))
    return rows


def _make_weights(name: str, weights: WeightsPlan | DraftWeights, variable: str) -> WeightsNeed:
    revision = PurePosixPath(weights["dir"]).name
    return WeightsNeed(
        name,
        weights["source"],
        revision,
        weights["bytes"],
        f"weights/{name}/{revision}",
        variable,
    )


def list_missing(needs: Needs, index: Bundle, catalogue: Catalogue) -> list[str]:
    """Name what a machine needs and the bundle does not have."""
    have = {(r["name"], r["sha256"], r["python"], r["arch"]) for r in index["locks"]}
    lacks = [
        f"the wheels of {need.name} for Python {need.python} on {need.arch}"
        for need in needs.locks
        if (need.name, catalogue.locks[need.name], need.python, need.arch) not in have
    ]
    python = needs.python
    if python and python["sha256"] not in {row["sha256"] for row in index["pythons"]}:
        lacks.append(f"CPython {python['version']} ({python['name']})")
    held = {
        name
        for row in index["archives"]
        if (row["system"], row["arch"]) == (needs.system, needs.arch)
        for name in row["packages"]
    }
    lacks += [f"{needs.system}'s package {name}" for name in needs.packages if name not in held]
    return [*lacks, *needs.unsupported]


def list_files(needs: Needs, index: Bundle) -> list[str]:
    """List the bundle's files that a machine needs."""
    names = {(need.name, need.python, need.arch) for need in needs.locks}
    files = [
        file
        for row in index["locks"]
        if (row["name"], row["python"], row["arch"]) in names
        for file in row["files"]
    ]
    if needs.python:
        digest = needs.python["sha256"]
        files += [row["file"] for row in index["pythons"] if row["sha256"] == digest]
    if needs.packages:
        files += [
            row["file"]
            for row in index["archives"]
            if (row["system"], row["arch"]) == (needs.system, needs.arch)
        ]
    return sorted(set(files))
