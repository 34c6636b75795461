"""Decide which machines are tried, where, on which terms and in which order."""

from __future__ import annotations

import difflib
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


class Offer(NamedTuple):
    """One attempt: a kind of machine in a zone or region; "" lets SkyPilot choose the region."""

    machine: str
    accelerators: str
    place: str
    spot: bool


class Quota(NamedTuple):
    """A quota to check, and to request, before a start."""

    id: str
    value: int
    fix: str


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


def list_quotas(settings: Settings, kinds: Sequence[CloudMachine]) -> list[Quota]:
    """Return the quotas of the first kind, and how each is asked for."""
    return [
        Quota(name, kind.quota, _describe_request(settings.cloud, name, kind.quota))
        for kind in kinds[:1]
        for name in (
            kind.quota_spot if settings.cloud_terms != "on-demand" else None,
            kind.quota_on_demand if settings.cloud_terms != "spot" else None,
        )
        if name is not None
    ]


def _describe_request(cloud: str, name: str, value: int) -> str:
    if cloud == "gcp":
        return (
            f"gcloud beta quotas preferences create --preferred-value={value} --quota-id={name} "
            "--service=compute.googleapis.com --project=PROJECT --dimensions=region=REGION "
            "--email=YOU"
        )
    return (
        "aws service-quotas request-service-quota-increase --service-code ec2 "
        f"--quota-code {name} --desired-value {value}"
    )
