"""Weights on disk, the RAM disk or the page cache instead, and the disk room for it all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.errors import UserError
from kimi_prov.planner import architecture
from kimi_prov.planner.findings import human
from kimi_prov.target import layout
from kimi_prov.target.machine import format_list

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Engine, Model
    from kimi_prov.planner.engine import Choice
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.host import Host
    from kimi_prov.planner.wishes import Wishes

_MIB = 1 << 20
_DISK_RESERVE = 1_000_000_000
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TMPFS = "Documentation/filesystems/tmpfs.rst: oversized, the machine deadlocks; pages do not drop"
_FACTS = "kt-kernel and vLLM copy the weights into memory of their own"


@dataclass(frozen=True)
class Weights:
    """Where the weights come from and how many bytes they are."""

    source: str
    revision: str
    directory: str
    size_bytes: int
    pinned: bool


@dataclass(frozen=True)
class RamDisk:
    """Whether there is one, why, and its mount options."""

    enabled: bool
    size_bytes: int
    reason: str
    options: str


def weights(wishes: Wishes, model: Model, weights_format: str, findings: Findings) -> Weights:
    """Resolve the source. Raises UserError where neither inventory nor catalogue names one."""
    source = wishes.weights_source or (f"hf://{model.repo}" if model.repo else None)
    if source is None:
        raise UserError(
            f"host {wishes.host}: kimi_weights_source is not set, and {model.name} has no "
            "repository of its own",
            fix="set kimi_weights_source, for example to file:///srv/model (a directory on the "
            "machine itself)",
        )
    revision = model.revision or "local"
    if source.startswith("hf://"):
        repository, _, wanted = source.removeprefix("hf://").partition("@")
        revision = wanted or model.revision or "main"
        source = f"hf://{repository}@{revision}"
    pinned = wishes.manifest is not None or _COMMIT.fullmatch(revision) is not None
    if not pinned and not source.startswith("file://"):
        findings.warning(
            "weights.unpinned",
            "The weights are not pinned: another download may bring other bytes",
            observed=f"{source}, no kimi_weights_manifest",
            required="a manifest, or hf://REPOSITORY@ with a commit of 40 hexadecimal digits",
            fix="set kimi_weights_manifest, or name the commit in kimi_weights_source",
            source="a branch of a repository moves",
        )
    size = architecture.checkpoint_bytes(model.architecture, weights_format) + model.other_bytes
    if wishes.manifest is not None:
        size = sum(int(row["size"]) for row in wishes.manifest["files"])
    folder = re.sub(r"[^\w.-]", "-", revision)
    return Weights(source, revision, f"{layout.MODELS}/{model.name}/{folder}", size, pinned)


def ram_disk(
    host: Host, wishes: Wishes, found: Weights, engine_bytes: int, findings: Findings
) -> RamDisk:
    """Decide for tmpfs only where memory holds the weights in it and the engine beside it.

    `engine_bytes`: all that the engine needs, its own copy of the weights and the reserve included.
    """
    # Unpinned sizes are computed from the architecture: leave room for what is not counted.
    margin = found.size_bytes // (100 if found.pinned else 33) + 64 * _MIB
    size = -(-(found.size_bytes + margin) // _MIB) * _MIB
    fits = size + engine_bytes <= host.memory_bytes
    need = f"{human(size)} for the RAM disk and {human(engine_bytes)} for engine and system"
    have = f"of {human(host.memory_bytes)}"
    wish = wishes.ram_disk
    if wish == "never":
        return _off("the inventory says never (kimi_ram_disk)")
    if wish == "auto" and not fits:
        return _off(
            f"memory does not hold the weights twice: {need}, {have}; the page cache serves"
        )
    if not fits:
        findings.blocker(
            "ram_disk.memory",
            "A RAM disk of that size would take the memory that the engine needs",
            observed=human(host.memory_bytes),
            required=need,
            fix="set kimi_ram_disk to auto or never: the page cache serves a restart as well",
            source=f"{_TMPFS}; {_FACTS}",
        )
    swap_out = host.swap_bytes and host.kernel < (6, 4)
    if swap_out:
        findings.warning(
            "ram_disk.swap",
            "The RAM disk may be swapped out: this kernel cannot forbid it",
            observed=f"{human(host.swap_bytes)} of swap, kernel {host.facts['host'].get('kernel')}",
            required="no swap, or kernel 6.4 for the mount option noswap",
            fix="swapoff -a and remove swap from /etc/fstab, or run a newer kernel",
            source=_TMPFS,
        )
    return RamDisk(
        enabled=True,
        size_bytes=size,
        reason=f"memory holds it: {need}, {have}",
        options=_options(host, size),
    )


def _off(reason: str) -> RamDisk:
    return RamDisk(enabled=False, size_bytes=0, reason=reason, options="")


def _options(host: Host, size: int) -> str:
    """Mount options; node lists as ranges, for commas part the options."""
    options = [f"size={size}", "mode=0755"]
    if host.kernel >= (6, 4):
        options.append("noswap")
    nodes = [node.id for node in host.nodes]
    if len(nodes) > 1:
        ranges = format_list(nodes)
        # Nodes with a gap between them cannot be written without a comma; then all are taken.
        options.append(f"mpol=interleave:{ranges}" if "," not in ranges else "mpol=interleave")
    return ",".join(options)


def disk(host: Host, found: Weights, choice: Choice, findings: Findings) -> dict[str, Any]:
    """Give the plan's `disk`, and judge the room that is left, counting what is there already."""
    required = found.size_bytes + _engine_room(choice.engine) + _DISK_RESERVE
    row = next((f for f in host.facts["filesystems"] if layout.ROOT in f.get("holds", [])), None)
    free = row.get("free_bytes") if row else None
    if row is None or free is None:
        return {"path": layout.ROOT, "required_bytes": required}
    kimi = host.facts["kimi"]
    there = sum(m["disk_bytes"] for m in kimi.get("models") or [] if m["dir"] == found.directory)
    missing = required - min(there, found.size_bytes)
    if choice.env_name in (kimi.get("engine_envs") or []):
        missing -= _engine_room(choice.engine)
    shown = f"{human(free)} free on {row['mount']}"
    if free < missing:
        findings.blocker(
            "disk.room",
            "The disk has too little room for weights and engine",
            observed=shown,
            required=f"{human(missing)} more below {layout.ROOT}",
            fix=f"mount a larger file system at {layout.ROOT}, or make room on {row['mount']}",
            source="bytes of the weights, the engine's environment while it is made, 1 GB reserve",
        )
    else:
        findings.passed(
            "disk.room",
            "The disk has room for weights and engine",
            observed=shown,
            required=f"{human(missing)} more below {layout.ROOT}",
            source="bytes of the weights, the engine's environment while it is made, 1 GB reserve",
        )
    return {"path": layout.ROOT, "required_bytes": required}


def _engine_room(engine: Engine) -> int:
    return engine.install_peak_bytes
