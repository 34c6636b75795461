"""The task by which SkyPilot fills a bucket with weights, and what both tasks share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.addresses import HUB_ADDRESS
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.render.cloud import machine, offers

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.settings.parsing import Settings

# SkyPilot ends an idle machine after these minutes, once its setup went through.
IDLE_MINUTES = 5
MOUNTED = "/tmp/kimi-machine"  # noqa: S108  (SkyPilot's user writes)
MOUNTS = {MOUNTED: "./machine"}
_CPUS, _MEMORY_GB = 8, 16
# The bytes go from the hub into the bucket, not onto the disk.
_DISK_GB = 100
# Reference 004: 595 GB in half an hour, on a machine of $0.30 an hour.
_BYTES_S, _USD_HOUR = 595e9 / 1800, 0.30
# Whatever happens, the machine is off by then; a seeding goes on where it ended.
_LIMIT_MINUTES = 8 * 60


@dataclass(frozen=True)
class Seeding:
    """Where the weights come from and go to; time and money of it are estimates."""

    source: str
    bucket: str
    minutes: float
    usd: float
    usd_month: float | None


def plan_seeding(plan: MachinePlan, settings: Settings, catalogue: Catalogue) -> Seeding | None:
    """Return how the bucket is filled; None where the weights are in no repository of the hub."""
    source = _find_hub_source(plan, settings, catalogue)
    if source is None:
        return None
    bucket, size = str(plan["weights"]["source"]), int(plan["weights"]["bytes"])
    prices = {row.name: row.usd_per_gb_month for row in catalogue.prices.storage}
    price = None if settings.bucket_endpoint else prices.get(bucket.partition("://")[0])
    seconds = size / _BYTES_S
    return Seeding(
        source,
        bucket,
        seconds / 60,
        seconds / 3600 * _USD_HOUR,
        None if price is None else size / 1e9 * price,
    )


def _find_hub_source(plan: MachinePlan, settings: Settings, catalogue: Catalogue) -> str | None:
    """Return the address of the weights on the hub, at the revision that the site has pinned.

    Without a pin it is the present one, which `weights seed` resolves and writes down.
    """
    revision = "main"
    if settings.weights_manifest:
        path = Path(settings.weights_manifest)
        pinned = manifests.parse(json.loads(path.read_text()), str(path))
        revision = pinned.revision or revision
        named = HUB_ADDRESS.fullmatch(pinned.source or "")
        if named:
            return f"hf://{named[1]}@{revision}"
    model = catalogue.model(plan["model"]["name"])
    repositories = {row.format: row.repo for row in model.published}
    if model.repo:
        repositories[model.native_format] = model.repo
    repository = repositories.get(str(plan["model"]["weights_format"]))
    return f"hf://{repository}@{revision}" if repository else None


def make_seed_task(seeding: Seeding, settings: Settings) -> dict[str, Any]:
    """Give the task that fills the bucket on a machine without GPUs, which then ends."""
    install = f"{MOUNTED}{machine.INSTALL} ~/kimi-prov {MOUNTED}{machine.STATE}"
    region = f" --region {settings.bucket_region}" if settings.bucket_region else ""
    return {
        "name": "kimi-seed",
        "resources": {
            "infra": format_infra(settings.cloud, next(iter(settings.cloud_regions), "")),
            "cpus": f"{_CPUS}+",
            "memory": f"{_MEMORY_GB}+",
            "disk_size": _DISK_GB,
            "use_spot": False,
            "autostop": {"idle_minutes": IDLE_MINUTES, "down": True, "wait_for": "jobs"},
        },
        "envs": {"KIMI_SOURCE": seeding.source},
        "file_mounts": MOUNTS,
        "setup": "set -euo pipefail\n"
        "# SkyPilot ends no machine whose setup failed: this one is off by then anyway.\n"
        f"sudo shutdown -P +{_LIMIT_MINUTES}\n"
        "sudo apt-get -o DPkg::Lock::Timeout=600 update -q\n"
        "sudo apt-get -o DPkg::Lock::Timeout=600 install -y -q rclone python3-venv\n"
        f"PATH=/usr/bin:$PATH bash {install}\n",
        "run": f'~/kimi-prov/bin/kimi-prov weights seed "$KIMI_SOURCE" {seeding.bucket}{region}\n',
    }


def format_infra(cloud: str, place: str) -> str:
    """Return a region or zone in SkyPilot's form: the region, then the zone."""
    return "/".join(part for part in (cloud, *offers.split_region(place)) if part)
