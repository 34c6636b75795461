"""Findings about disks, the RAM disk and the weights."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

_UNPINNED = "a branch of a repository moves"
_MODEL_ROW = "the model's row in kimi_prov/catalog/models.yaml"
_BUCKET = "looked at from the machine by `apply`, before a download begins"
_ROOM = "bytes of the weights, the engine's environment while it is made, 1 GB reserve"
_TMPFS = "Documentation/filesystems/tmpfs.rst: oversized, the machine deadlocks; pages do not drop"

DEFINITIONS = (
    Definition(
        "bucket.absent",
        title="The bucket, its folder or its manifest is not there",
        severities=("blocker",),
        source=_BUCKET,
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "bucket.credentials",
        title="The bucket's provider does not take the credentials",
        severities=("blocker",),
        source=_BUCKET,
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "bucket.incomplete",
        title="The bucket does not hold all files of the manifest",
        severities=("blocker",),
        source=_BUCKET,
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "bucket.ready",
        title="The bucket can be read and holds all files",
        severities=("pass",),
        source=_BUCKET,
        remedy="none",
        concerns="deployment",
    ),
    Definition(
        "bucket.unreachable",
        title="The bucket cannot be reached",
        severities=("blocker",),
        source=_BUCKET,
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "disk.capacity",
        title="The disks are too small for the weights",
        severities=("blocker",),
        source=_ROOM,
        remedy="disk",
    ),
    Definition(
        "disk.network",
        title="The weights would lie on a network or FUSE file system",
        severities=("warning",),
        source="reference 004, trouble 12: a FUSE mount took over an hour for 595 GB",
        remedy="hardware",
    ),
    Definition(
        "disk.room",
        title="The disk has too little room for weights and engine",
        severities=("blocker", "pass"),
        source=_ROOM,
        remedy="disk",
        titles={"pass": "The disk has room for weights and engine"},
        moves=True,
    ),
    Definition(
        "disk.speed",
        title="The disk makes every start long",
        severities=("warning",),
        source="bytes of the weights over the disk's sequential speed",
        remedy="hardware",
    ),
    Definition(
        "ram_disk.memory",
        title="A RAM disk of that size would take the memory that the engine needs",
        severities=("blocker",),
        source=f"{_TMPFS}; kt-kernel and vLLM copy the weights into memory of their own",
        remedy="setting",
    ),
    Definition(
        "ram_disk.swap",
        title="The RAM disk may be swapped out: this kernel cannot forbid it",
        severities=("warning",),
        source=_TMPFS,
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "upgrade.in_place",
        title="What serves is removed before the new version comes",
        severities=("warning",),
        source="kimi_upgrade_in_place, and the room that both versions would need",
        remedy="setting",
        concerns="deployment",
        moves=True,
    ),
    Definition(
        "weights.code_in_clear",
        title="Code that the engine runs would come over http, and nothing pins it",
        severities=("blocker",),
        source="over http who is on the way writes the answer, the source's own manifest with it",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "weights.converted_unpinned",
        title="The converted experts are not pinned: another download may bring other bytes",
        severities=("warning",),
        source=_UNPINNED,
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "weights.draft_unpinned",
        title="The draft's weights are not pinned: another download may bring other bytes",
        severities=("warning",),
        source=_UNPINNED,
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "weights.format_override",
        title="The inventory asks for another number format than the model's own",
        severities=("info",),
        source="the model was trained, or quantised by its makers, in its own format",
        remedy="setting",
    ),
    Definition(
        "weights.format_unpublished",
        title="{model} is not published in {format}",
        severities=("blocker",),
        source=_MODEL_ROW,
        remedy="setting",
        own_source=True,
    ),
    Definition(
        "weights.neighbour_left",
        title="A neighbour did not give the weights as planned: the source was asked",
        severities=("warning",),
        source="every file is verified by the manifest, whoever gave it",
        remedy="depends",
        concerns="deployment",
    ),
    Definition(
        "weights.no_neighbour",
        title="There is no neighbour to take the weights from: the source is asked",
        severities=("info",),
        source="kimi_weights_from, and what the inventory says of its hosts",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "weights.source_missing",
        title="Where the weights come from is not said: kimi_weights_source is not set, and "
        "{model} has no repository of its own",
        severities=("info",),
        source=_MODEL_ROW,
        remedy="setting",
        concerns="deployment",
        own_source=True,
        blocks_apply=True,
    ),
    Definition(
        "weights.unpinned",
        title="The weights are not pinned: another download may bring other bytes",
        severities=("warning",),
        source=_UNPINNED,
        remedy="setting",
        concerns="deployment",
    ),
)
