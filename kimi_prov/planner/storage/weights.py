"""Weights on disk, the RAM disk or the page cache instead, and the disk room for it all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths
from kimi_prov.contract.cpu_lists import format_list
from kimi_prov.contract.sizes import human
from kimi_prov.planner.decisions import RamDisk, Weights
from kimi_prov.planner.memory import architecture

if TYPE_CHECKING:
    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.models import Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Bound, Choice, Converted
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

CONVERTED = "the experts are read from the converted files, once; most of the weights are not read"
_MIB = 1 << 20
_DISK_RESERVE = 1_000_000_000
COMMIT = re.compile(r"[0-9a-f]{40}")


def addressed(source: str, revision: str | None = None) -> tuple[str, str]:
    """Return the address with its revision, and the revision; `revision` where it names none."""
    if not source.startswith("hf://"):
        return source, revision or "local"
    repository, _, named = source.removeprefix("hf://").partition("@")
    named = named or revision or "main"
    return f"hf://{repository}@{named}", named


def weights(settings: Settings, model: Model, weights_format: str, findings: Findings) -> Weights:
    """Resolve the source; where neither inventory nor catalogue names one it is empty."""
    published = next((row for row in model.published if row.format == weights_format), None)
    repo = published.repo if published and weights_format != model.native_format else model.repo
    source = settings.weights_source or (f"hf://{repo}" if repo else "")
    if not source:
        findings.add(
            "weights.source_missing",
            names={"model": model.name},
            observed="kimi_weights_source is not set",
            required="a source, for `apply`; `check` and `plan` do without",
            fix="set kimi_weights_source, for example to file:///srv/model (a directory on the "
            "machine itself)",
            source=model.source,
        )
    source, revision = addressed(source, model.revision)
    pinned = settings.manifest is not None or COMMIT.fullmatch(revision) is not None
    if source and not pinned and not source.startswith("file://"):
        findings.add(
            "weights.unpinned",
            observed=f"{source}, no kimi_weights_manifest",
            required="a manifest, or hf://REPOSITORY@ with a commit of 40 hexadecimal digits",
            fix="set kimi_weights_manifest, or name the commit in kimi_weights_source",
        )
    size = architecture.checkpoint_bytes(model.architecture, weights_format) + model.other_bytes
    if settings.manifest is not None:
        size = sum(int(row["size"]) for row in settings.manifest["files"])
    folder = re.sub(r"[^\w.-]", "-", revision)
    return Weights(source, revision, f"{paths.MODELS}/{model.name}/{folder}", size, pinned)


def ram_disk(
    host: Host,
    settings: Settings,
    found: Weights,
    bound: Bound,
    findings: Findings,
    *,
    converted: Converted | None = None,
) -> RamDisk:
    """Decide for tmpfs only where memory holds the weights in it and the engine beside it.

    Its pages are dealt out over all nodes, so each node has to hold its part of them beside what
    the engine binds to it.
    """
    engine_bytes = bound.total
    # Unpinned sizes are computed from the architecture: leave room for what is not counted.
    margin = found.size_bytes // (100 if found.pinned else 33) + 64 * _MIB
    size = -(-(found.size_bytes + margin) // _MIB) * _MIB
    fits = size + engine_bytes <= host.memory_bytes and _nodes_hold(host, size, bound)
    need = f"{human(size)} for the RAM disk and {human(engine_bytes)} for engine and system"
    have = f"of {human(host.memory_bytes)}"
    setting = settings.ram_disk
    if setting == "never":
        return _off("the inventory says never (kimi_ram_disk)")
    if setting == "auto" and converted is not None:
        return _off(CONVERTED)
    if setting == "auto" and not fits:
        return _off(
            f"memory does not hold the weights twice: {need}, {have}; the page cache serves"
        )
    if not fits:
        findings.add(
            "ram_disk.memory",
            observed=human(host.memory_bytes),
            required=need,
            fix="set kimi_ram_disk to auto or never: the page cache serves a restart as well",
        )
    swap_out = host.swap_bytes and host.kernel < (6, 4)
    if swap_out:
        findings.add(
            "ram_disk.swap",
            observed=f"{human(host.swap_bytes)} of swap, kernel {host.facts['host'].get('kernel')}",
            required="no swap, or kernel 6.4 for the mount option noswap",
            fix="swapoff -a and remove swap from /etc/fstab, or run a newer kernel",
        )
    return RamDisk(
        enabled=True,
        size_bytes=size,
        reason=f"memory holds it: {need}, {have}",
        options=_options(host, size),
    )


def _nodes_hold(host: Host, size: int, bound: Bound) -> bool:
    """Whether every node that the engine binds memory to holds its part of the files as well."""
    if not bound.nodes or not host.nodes:
        return True
    part = size // len(host.nodes) + bound.share
    part += host.reserve_bytes // len(host.nodes)
    return all(part <= node.memory_bytes for node in host.nodes if node.id in bound.nodes)


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


def disk(
    host: Host,
    found: Weights,
    choice: Choice,
    findings: Findings,
    *,
    draft_bytes: int = 0,
    converted: Converted | None = None,
) -> dict[str, Any]:
    """Give the plan's `disk`, and judge the room that is left, counting what is there already."""
    required = found.size_bytes + draft_bytes + _engine_room(choice.engine) + _DISK_RESERVE
    parts = {found.directory: found.size_bytes}
    shares = ""
    if converted is not None:
        required += converted.room_bytes
        parts[converted.directory] = converted.size_bytes
        shares = (
            f"; in all {human(found.size_bytes)} of weights, {human(converted.room_bytes)} for the "
            f"converted experts, {human(_engine_room(choice.engine))} for the engine, and a reserve"
        )
    row = next((f for f in host.facts["filesystems"] if paths.ROOT in f.get("holds", [])), None)
    free = row.get("free_bytes") if row else None
    if row is None or free is None:
        return {"path": paths.ROOT, "required_bytes": required}
    kimi = host.facts["kimi"]
    there = {m["dir"]: m["disk_bytes"] for m in kimi.get("models") or []}
    missing = required - sum(min(there.get(where, 0), size) for where, size in parts.items())
    if choice.env_name in (kimi.get("engine_envs") or []):
        missing -= _engine_room(choice.engine)
    shown = f"{human(free)} free on {row['mount']}"
    if free < missing:
        findings.add(
            "disk.room",
            severity="blocker",
            observed=shown,
            required=f"{human(missing)} more below {paths.ROOT}{shares}",
            fix=f"mount a larger file system at {paths.ROOT}, or make room on {row['mount']}",
        )
    else:
        findings.add(
            "disk.room",
            severity="pass",
            observed=shown,
            required=f"{human(missing)} more below {paths.ROOT}{shares}",
        )
    return {"path": paths.ROOT, "required_bytes": required}


def _engine_room(engine: Engine) -> int:
    return engine.install_peak_bytes
