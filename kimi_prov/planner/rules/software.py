"""Rules about drivers and what stands beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.planner.driver import branch
from kimi_prov.planner.rules.context import Case, Hit, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLACKWELL = ("10.", "12.")


@rule(
    "driver.fabric_manager",
    "The fabric manager is not of the driver's version, or missing on an NVSwitch machine",
    "NVIDIA's packaging: fabric manager and driver have to be of exactly one version",
)
def _fabric_manager(case: Case) -> Iterator[Hit]:
    driver = case.nvidia.get("driver_loaded") or case.nvidia.get("driver_installed")
    manager = case.nvidia.get("fabric_manager")
    states = {str(card.get("fabric_state") or "").lower() for card in case.cards}
    if case.host.virtual and "completed" in states and not case.nvidia.get("nvswitch_devices"):
        yield Hit(
            "pass",
            observed="fabric state Completed; the host owns the fabric manager",
            required="a fabric that is ready",
            title="The NVSwitch fabric is ready",
        )
        return
    version = (manager or {}).get("package_version")
    if driver and version and _plain(version) != _plain(driver):
        yield Hit(
            "blocker",
            observed=f"fabric manager {version}, driver {driver}",
            required="the same version",
            fix=f"apt-get install nvidia-fabricmanager-{branch(driver)} in the version {driver}, "
            "in one transaction with the driver",
        )
    elif (
        case.nvidia.get("nvswitch")
        and driver
        and manager is not None
        and not version
        and not case.host.virtual
    ):
        yield Hit(
            "blocker",
            observed="no fabric manager",
            required=f"nvidia-fabricmanager of version {driver}, running",
            fix=f"apt-get install nvidia-fabricmanager-{branch(driver)} in the version {driver}",
        )
    elif manager and version and manager.get("active") is False and not case.host.virtual:
        yield Hit(
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
def _nscq(case: Case) -> Iterator[Hit]:
    driver = case.nvidia.get("driver_loaded") or case.nvidia.get("driver_installed")
    found = case.nvidia.get("nscq")
    if driver and found and _plain(found) != _plain(driver):
        yield Hit(
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
def _open_module(case: Case) -> Iterator[Hit]:
    capability = case.host.capability or ""
    needs = bool(case.host.gpu and case.host.gpu.open_module_required)
    blackwell = needs or capability.startswith(_BLACKWELL)
    if blackwell and not case.host.amd and case.nvidia.get("open_module") is False:
        yield Hit(
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
def _hold(case: Case) -> Iterator[Hit]:
    if case.host.gpu_bytes and case.nvidia.get("held") is False:
        upgrades = (case.facts.get("packages") or {}).get("unattended_upgrades")
        yield Hit(
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
def _stock(case: Case) -> Iterator[Hit]:
    release = case.facts["host"]["os"]
    row = next(
        (
            s
            for s in case.catalogue.systems
            if (s.id, s.version) == (release.get("id"), release.get("version_id"))
        ),
        None,
    )
    need = case.plan["driver"]["required_branch"]
    if not row or not row.nvidia_driver or not need or branch(row.nvidia_driver) >= need:
        return
    have = case.nvidia.get("driver_loaded") or case.nvidia.get("driver_installed")
    if branch(have) < need:
        yield Hit(
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
def _persistence(case: Case) -> Iterator[Hit]:
    off = [str(card["index"]) for card in case.cards if card.get("persistence") is False]
    if off:
        yield Hit(
            "info",
            observed=f"off on GPU {', '.join(off)}",
            required="on",
            fix="systemctl enable --now nvidia-persistenced",
        )


def _plain(version: object) -> str:
    """Take a package's revision off: 580.159.04-1 and 580.159.04 are one driver."""
    return str(version).rsplit(":", 1)[-1].partition("-")[0]
