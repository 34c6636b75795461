"""`kimi-prov render kubernetes`: objects for a cluster of Kubernetes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common.options import PATH, add_connection_options
from kimi_prov.commands.render.folder import Kind, RenderCommand, add_render_options, render
from kimi_prov.contract import clean_text
from kimi_prov.contract.rendered_kinds import KUBERNETES
from kimi_prov.errors import UserError
from kimi_prov.planner.findings import sort_by_severity
from kimi_prov.render.kubernetes import findings, folder
from kimi_prov.render.kubernetes import quota as quotas

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.errors import ExitCode
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.render import folder_writer


@click.command("kubernetes", cls=RenderCommand)
@add_render_options
@click.option("--image", "kubernetes_image", metavar="IMAGE", help="The image with the engine.")
@click.option(
    "--name", "kubernetes_name", metavar="NAME", help="Name of the objects.  [default: kimi]"
)
@click.option(
    "--namespace",
    "kubernetes_namespace",
    metavar="NAME",
    help="Their namespace.  [default: kubectl's]",
)
@click.option(
    "--storage-class",
    "kubernetes_storage_class",
    metavar="NAME",
    help="Class of the volumes.  [default: the cluster's]",
)
@click.option(
    "--hostname",
    "kubernetes_hostname",
    metavar="NAME",
    help="Name of the API for clients outside the cluster.",
)
@click.option("--ingress-class", "kubernetes_ingress_class", metavar="NAME", help="Its Ingress.")
@click.option(
    "--gateway-class", "kubernetes_gateway_class", metavar="NAME", help="Its Gateway instead."
)
@click.option(
    "--quota",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="ResourceQuota and LimitRange of the namespace, as `kubectl get -o yaml` gives them.",
)
@add_connection_options
def render_kubernetes(quota: tuple[Path, ...], **options: Any) -> ExitCode:  # noqa: ANN401
    """Write objects for a Kubernetes cluster: volume, fetching Job, server, Service and the rest.

    TARGET is data that describes one node: a spec sheet, a facts file that `probe` wrote there, or
    a recorded folder. The same input gives the same bytes; files that were changed by hand since
    stay. No cluster is asked; README.md in the folder lists what it must have. Nothing is written
    where the plan or a quota has a blocker: exit 3.
    """
    find, write = partial(_find, quota), partial(_render, quota)
    kind = Kind(KUBERNETES, _require, findings.adjust_settings, find, write, _describe)
    return render(kind, **options)


def _require(settings: Settings) -> None:
    if settings.kubernetes_image is None:
        raise UserError(
            "kimi_kubernetes_image is not set: it is the image with the engine",
            fix="give  --image REGISTRY/NAME:TAG , or kimi_kubernetes_image in --vars FILE; you "
            "build it:  kimi-prov image vllm-cuda --output kimi-image",
        )


def _find(
    quota_files: Sequence[Path],
    name: str,
    plan: MachinePlan,
    settings: Settings,
    facts: Facts,
    catalogue: Catalogue,
) -> Sequence[Finding]:
    rows = quotas.read(quota_files, settings.kubernetes_namespace)
    of_plan = findings.select_findings(plan, settings, facts, catalogue)
    if not plan["instances"] or any(row["severity"] == "blocker" for row in plan["findings"]):
        return of_plan
    least = quotas.find_least(rows)
    objects = folder.render_objects(name, plan, settings, facts, least)
    demand = quotas.sum_demand(quotas.load(objects))
    of_quota = findings.check_quota(rows, demand, settings.kubernetes_namespace)
    return sort_by_severity([*of_plan, *of_quota])


def _render(
    quota_files: Sequence[Path],
    name: str,
    plan: MachinePlan,
    rows: Sequence[Finding],
    settings: Settings,
    facts: Facts,
    _catalogue: Catalogue,
) -> folder_writer.RenderedFolder:
    least = quotas.find_least(quotas.read(quota_files, settings.kubernetes_namespace))
    return folder.render_folder(name, plan, rows, settings, facts, least)


def _describe(path: Path, notes: int) -> str:
    lines = [f"{notes} notes on what the cluster must have are in README.md there"] if notes else []
    return "\n".join([*lines, f"next:  kimi-prov apply {clean_text.quote_word(path)}"])
