"""Decide which machines are tried, where, on which terms and in which order."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.clouds import CloudMachine
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.settings.parsing import Settings

# Beside the weights: system, engine, caches, and what a download needs meanwhile.
_BESIDE_GB = 150
_ZONE = re.compile(r"([a-z]+-[a-z]+\d+)-[a-z]|([a-z]{2}-[a-z]+-\d)[a-z]")
# Of Google: the gate that stopped reference 004, and the one of the whole project.
_FAMILY_QUOTA = "GPUS-PER-GPU-FAMILY-per-project-region"
_PROJECT_QUOTA = "GPUS-ALL-REGIONS-per-project"


class Offer(NamedTuple):
    """One attempt: a kind of machine in a zone or region; "" lets SkyPilot choose the region."""

    machine: str
    accelerators: str
    place: str
    spot: bool


class Quota(NamedTuple):
    """A quota that an attempt needs. `region` and `family` are Google's dimensions of it."""

    id: str
    value: int
    region: str = ""
    family: str = ""


def choose_disk_gb(plan: MachinePlan) -> int:
    """Return the size of the disk that a machine is started with, GB."""
    return -(-int(plan["weights"]["bytes"]) // 10**9) + _BESIDE_GB


def list_machines(settings: Settings, catalogue: Catalogue) -> list[CloudMachine]:
    """Return the kinds that the site names, in its order. Raises UserError for an unknown one."""
    known = {row.name: row for row in catalogue.clouds if row.cloud == settings.cloud}
    for name in settings.cloud_machines:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(
                f"kimi_cloud_machines: the catalogue has no {name} of {settings.cloud}{hint}",
                fix="take one that  kimi-prov catalog clouds  lists, or add a row to a clouds.yaml "
                "of your own (--catalog DIR)",
            )
    return [known[name] for name in settings.cloud_machines]


def list_offers(
    settings: Settings, kinds: Sequence[CloudMachine], places: Sequence[str]
) -> list[Offer]:
    """Return what is tried, the kinds in their order within the terms."""
    terms = {"spot": [True], "on-demand": [False], "spot-first": [True, False]}
    return [
        Offer(kind.name, f"{kind.accelerator}:{kind.gpus}", region, spot)
        for spot in terms[settings.cloud_terms]
        for kind in kinds
        for region in places
    ]


def list_quotas(offer: Offer, kinds: Sequence[CloudMachine]) -> list[Quota]:
    """Return the quotas of one attempt, all of which it needs; none without a region."""
    kind = next(row for row in kinds if row.name == offer.machine)
    region = split_region(offer.place)[0]
    if not region:
        return []
    named = kind.quota_spot if offer.spot else kind.quota_on_demand
    rows = [Quota(named, kind.quota, region)] if named else []
    if kind.gpu_family:
        rows.append(Quota(_FAMILY_QUOTA, kind.quota, region, kind.gpu_family))
    if kind.cloud == "gcp":
        rows.append(Quota(_PROJECT_QUOTA, kind.quota))
    return rows


def split_region(text: str) -> tuple[str, str]:
    """Return region and zone of a place; "" for what it does not name."""
    zone = _ZONE.fullmatch(text)
    return ((zone[1] or zone[2]), text) if zone else (text, "")
