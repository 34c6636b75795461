"""Rules about drivers, and software that must fit them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.planner.rules.context import PlanContext, RuleResult, register_rule
from kimi_prov.planner.software.driver import find_imex_package, parse_branch

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLACKWELL = ("10.", "12.")


@register_rule("driver.fabric_manager")
def _check_fabric_manager(context: PlanContext) -> Iterator[RuleResult]:
    driver = context.nvidia.get("driver_loaded") or context.nvidia.get("driver_installed")
    manager = context.nvidia.get("fabric_manager")
    states = {str(gpu.get("fabric_state") or "").lower() for gpu in context.gpus}
    if (
        context.host.virtual
        and "completed" in states
        and not context.nvidia.get("nvswitch_devices")
    ):
        yield RuleResult(
            severity="pass",
            observed="fabric state Completed; the host owns the fabric manager",
            required="a fabric that is ready",
        )
        return
    version = (manager or {}).get("package_version")
    if driver and version and _strip_revision(version) != _strip_revision(driver):
        yield RuleResult(
            severity="blocker",
            observed=f"fabric manager {version}, driver {driver}",
            required="the same version",
            fix=f"apt-get install nvidia-fabricmanager-{parse_branch(driver)} in the version "
            f"{driver}, in one transaction with the driver",
        )
    elif (
        context.nvidia.get("nvswitch")
        and driver
        and manager is not None
        and not version
        and not context.host.virtual
    ):
        yield RuleResult(
            severity="blocker",
            observed="no fabric manager",
            required=f"nvidia-fabricmanager of version {driver}, running",
            fix=f"apt-get install nvidia-fabricmanager-{parse_branch(driver)} in the version "
            f"{driver}",
        )
    elif manager and version and manager.get("active") is False and not context.host.virtual:
        yield RuleResult(
            severity="blocker",
            observed="the fabric manager does not run",
            required="nvidia-fabricmanager.service active",
            fix="systemctl enable --now nvidia-fabricmanager",
        )


@register_rule("driver.imex")
def _check_imex(context: PlanContext) -> Iterator[RuleResult]:
    driver = context.nvidia.get("driver_loaded") or context.nvidia.get("driver_installed")
    package = find_imex_package(context.nvidia)
    if not driver or package is None or _strip_revision(package[1]) == _strip_revision(driver):
        return
    name, version = package
    yield RuleResult(
        observed=f"{name} {version}, driver {driver}",
        required="the same version; a memory export between nodes fails otherwise",
        fix=f"apt-get install nvidia-imex-{parse_branch(driver)} in the version {driver}, or, "
        f"where no other node shares this one's GPU memory, apt-get remove "
        f"{clean_text.quote_word(name)}",
    )


@register_rule("driver.nscq")
def _check_nscq(context: PlanContext) -> Iterator[RuleResult]:
    driver = context.nvidia.get("driver_loaded") or context.nvidia.get("driver_installed")
    nscq = context.nvidia.get("nscq")
    if driver and nscq and _strip_revision(nscq) != _strip_revision(driver):
        yield RuleResult(
            observed=f"nscq {nscq}, driver {driver}",
            required="the same version",
            fix=f"apt-get install libnvidia-nscq-{parse_branch(driver)} in the version {driver}",
        )


@register_rule("driver.open_module")
def _check_open_module(context: PlanContext) -> Iterator[RuleResult]:
    capability = context.host.capability or ""
    needs = any(card and card.open_module_required for card in context.host.cards)
    blackwell = needs or capability.startswith(_BLACKWELL)
    if blackwell and not context.host.amd and context.nvidia.get("open_module") is False:
        yield RuleResult(
            observed="closed kernel modules",
            required="open kernel modules, branch 570 or newer",
            fix="install nvidia-open of the same version, and restart the machine",
        )


@register_rule("driver.hold")
def _check_held_packages(context: PlanContext) -> Iterator[RuleResult]:
    if context.host.gpu_bytes and context.nvidia.get("held") is False:
        upgrades = (context.facts.get("packages") or {}).get("unattended_upgrades")
        yield RuleResult(
            severity="info" if upgrades is False else "warning",
            observed="the driver's packages are not held",
            required="apt-mark hold, or a pin of the exact version",
            fix="apt-mark hold 'nvidia-*' 'libnvidia-*' cuda-drivers*",
        )


@register_rule("driver.stock")
def _check_distribution_driver(context: PlanContext) -> Iterator[RuleResult]:
    release = context.facts["host"]["os"]
    row = next(
        (
            s
            for s in context.catalogue.systems
            if (s.id, s.version) == (release.get("id"), release.get("version_id"))
        ),
        None,
    )
    need = context.plan["driver"]["required_branch"]
    if not row or not row.nvidia_driver or not need or parse_branch(row.nvidia_driver) >= need:
        return
    have = context.nvidia.get("driver_loaded") or context.nvidia.get("driver_installed")
    if parse_branch(have) < need:
        yield RuleResult(
            observed=f"{row.id} {row.version} ships {row.nvidia_driver}",
            required=f"branch {need}: NVIDIA's repository, or a mirror of it; the version that "
            "apt resolves counts, not the package's name",
        )


@register_rule("driver.persistence")
def _check_persistence(context: PlanContext) -> Iterator[RuleResult]:
    off = [str(gpu["index"]) for gpu in context.gpus if gpu.get("persistence") is False]
    if off:
        yield RuleResult(
            observed=f"off on GPU {', '.join(off)}",
            required="on",
            fix="systemctl enable --now nvidia-persistenced",
        )


def _strip_revision(version: object) -> str:
    """Remove a package's revision: 580.159.04-1 and 580.159.04 are one driver."""
    return str(version).rsplit(":", 1)[-1].partition("-")[0]
