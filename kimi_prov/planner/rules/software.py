"""Rules about drivers and what stands beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.planner.driver import branch
from kimi_prov.planner.rules.context import PlanContext, RuleResult, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLACKWELL = ("10.", "12.")


@rule(
    "driver.fabric_manager",
    "The fabric manager is not of the driver's version, or missing on an NVSwitch machine",
    "NVIDIA's packaging: fabric manager and driver have to be of exactly one version",
)
def _fabric_manager(context: PlanContext) -> Iterator[RuleResult]:
    driver = context.nvidia.get("driver_loaded") or context.nvidia.get("driver_installed")
    manager = context.nvidia.get("fabric_manager")
    states = {str(gpu.get("fabric_state") or "").lower() for gpu in context.gpus}
    if (
        context.host.virtual
        and "completed" in states
        and not context.nvidia.get("nvswitch_devices")
    ):
        yield RuleResult(
            "pass",
            observed="fabric state Completed; the host owns the fabric manager",
            required="a fabric that is ready",
            title="The NVSwitch fabric is ready",
        )
        return
    version = (manager or {}).get("package_version")
    if driver and version and _plain(version) != _plain(driver):
        yield RuleResult(
            "blocker",
            observed=f"fabric manager {version}, driver {driver}",
            required="the same version",
            fix=f"apt-get install nvidia-fabricmanager-{branch(driver)} in the version {driver}, "
            "in one transaction with the driver",
        )
    elif (
        context.nvidia.get("nvswitch")
        and driver
        and manager is not None
        and not version
        and not context.host.virtual
    ):
        yield RuleResult(
            "blocker",
            observed="no fabric manager",
            required=f"nvidia-fabricmanager of version {driver}, running",
            fix=f"apt-get install nvidia-fabricmanager-{branch(driver)} in the version {driver}",
        )
    elif manager and version and manager.get("active") is False and not context.host.virtual:
        yield RuleResult(
            "blocker",
            observed="the fabric manager does not run",
            required="nvidia-fabricmanager.service active",
            fix="systemctl enable --now nvidia-fabricmanager",
        )


@rule(
    "driver.nscq",
    "libnvidia-nscq is not of the driver's version",
    "NVIDIA's packaging of libnvidia-nscq",
)
def _nscq(context: PlanContext) -> Iterator[RuleResult]:
    driver = context.nvidia.get("driver_loaded") or context.nvidia.get("driver_installed")
    found = context.nvidia.get("nscq")
    if driver and found and _plain(found) != _plain(driver):
        yield RuleResult(
            "warning",
            observed=f"nscq {found}, driver {driver}",
            required="the same version",
            fix=f"apt-get install libnvidia-nscq-{branch(driver)} in the version {driver}",
        )


@rule(
    "driver.open_module",
    "Blackwell GPUs need NVIDIA's open kernel modules",
    "NVIDIA's driver README: the closed modules do not know GPUs after Hopper",
)
def _open_module(context: PlanContext) -> Iterator[RuleResult]:
    capability = context.host.capability or ""
    needs = bool(context.host.gpu and context.host.gpu.open_module_required)
    blackwell = needs or capability.startswith(_BLACKWELL)
    if blackwell and not context.host.amd and context.nvidia.get("open_module") is False:
        yield RuleResult(
            "blocker",
            observed="closed kernel modules",
            required="open kernel modules, branch 570 or newer",
            fix="install nvidia-open of the same version, and restart the machine",
        )


@rule(
    "driver.hold",
    "Nothing holds the driver against unattended upgrades",
    "an upgrade changes libraries under a running module: `Driver/library version mismatch`",
)
def _hold(context: PlanContext) -> Iterator[RuleResult]:
    if context.host.gpu_bytes and context.nvidia.get("held") is False:
        upgrades = (context.facts.get("packages") or {}).get("unattended_upgrades")
        yield RuleResult(
            "info" if upgrades is False else "warning",
            observed="the driver's packages are not held",
            required="apt-mark hold, or a pin of the exact version",
            fix="apt-mark hold 'nvidia-*' 'libnvidia-*' cuda-drivers*",
        )


@rule(
    "driver.stock",
    "The distribution's own driver is too old: NVIDIA's repository is needed",
    "Debian 12 ships branch 535, Debian 13 ships 550",
)
def _stock(context: PlanContext) -> Iterator[RuleResult]:
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
    if not row or not row.nvidia_driver or not need or branch(row.nvidia_driver) >= need:
        return
    have = context.nvidia.get("driver_loaded") or context.nvidia.get("driver_installed")
    if branch(have) < need:
        yield RuleResult(
            "info",
            observed=f"{row.id} {row.version} ships {row.nvidia_driver}",
            required=f"branch {need}: NVIDIA's repository, or a mirror of it; the version that "
            "apt resolves counts, not the package's name",
        )


@rule(
    "driver.persistence",
    "Persistence mode is off: the driver unloads when nobody uses the GPUs",
    "NVIDIA driver persistence documentation",
)
def _persistence(context: PlanContext) -> Iterator[RuleResult]:
    off = [str(gpu["index"]) for gpu in context.gpus if gpu.get("persistence") is False]
    if off:
        yield RuleResult(
            "info",
            observed=f"off on GPU {', '.join(off)}",
            required="on",
            fix="systemctl enable --now nvidia-persistenced",
        )


def _plain(version: object) -> str:
    """Take a package's revision off: 580.159.04-1 and 580.159.04 are one driver."""
    return str(version).rsplit(":", 1)[-1].partition("-")[0]
