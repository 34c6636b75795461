"""The NVIDIA driver: which branch is needed, and whether it has to be installed or loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.loader import Catalogue, Engine
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.host import Host

# Formats whose experts run in Marlin kernels.
_MARLIN = ("int4", "nvfp4", "mxfp4")
_PTX = (
    "an older one ends with `PTX JIT compilation failed` or `the provided PTX was compiled with an "
    "unsupported toolchain`"
)


def branch(version: object) -> int:
    """Give the branch of a driver's version: 580 of "580.159.04"; 0 for what is not known."""
    number = str(version or "").partition(".")[0]
    return int(number) if number.isdigit() else 0


def required(host: Host, engine: Engine, catalogue: Catalogue, weights_format: str) -> int | None:
    """Give the least branch: of the engine's CUDA, its Marlin kernels, and the cards."""
    if host.amd:
        return None
    found = [catalogue.drivers.branch_for(engine.cuda) if engine.cuda else None]
    found.append(host.gpu.driver_branch if host.gpu else None)
    if weights_format in _MARLIN:
        found.append(engine.driver_branch)
    return max((number for number in found if number), default=engine.driver_branch)


def driver(
    host: Host, engine: Engine, catalogue: Catalogue, weights_format: str, findings: Findings
) -> dict[str, Any]:
    """Give the plan's `driver`: the branch, and what has to happen to it (none, install, restart).

    Drivers are looked at and not installed by this version.
    """
    nvidia = host.facts.get("nvidia") or {}
    if not host.gpu_bytes:
        if nvidia.get("pci_devices"):
            _missing(nvidia, findings)
        return {"required_branch": None, "action": "none"}
    need = required(host, engine, catalogue, weights_format)
    action = "none" if need is None else _judge(nvidia, need, engine, catalogue, findings)
    return {"required_branch": need, "action": action}


def _judge(
    nvidia: Mapping[str, Any], need: int, engine: Engine, catalogue: Catalogue, findings: Findings
) -> str:
    """Say what has to happen to the driver: none, install or restart."""
    loaded, installed = nvidia.get("driver_loaded"), nvidia.get("driver_installed")
    rule = next((row for row in catalogue.drivers.rules if row.name == "marlin-ptx"), None)
    source = rule.source if rule else engine.source
    if loaded is None and installed is None:
        findings.info(
            "driver.branch",
            "Which NVIDIA driver is installed is not known",
            observed="unknown",
            required=f"branch {need} or newer; {_PTX}",
            source=source,
        )
        return "none"
    if loaded and installed and loaded != installed and branch(installed) >= need:
        findings.blocker(
            "driver.restart",
            "The installed NVIDIA driver is not the one that runs",
            observed=f"installed {installed}, running {loaded}",
            required="the same version",
            fix="restart the machine (kernel modules are never swapped under a running system)",
            source="reference 004, trouble 4",
        )
        return "restart"
    seen = loaded or installed
    if branch(seen) < need:
        findings.blocker(
            "driver.branch",
            "The NVIDIA driver is too old for the engine's kernels",
            observed=str(seen),
            required=f"branch {need} or newer; {_PTX}",
            fix=f"install NVIDIA's driver, branch {need}, and restart the machine",
            source=source,
        )
        return "install"
    if loaded is None:
        findings.warning(
            "driver.not_loaded",
            "The NVIDIA driver is installed and its module is not loaded",
            observed=f"installed {installed}",
            required="the module loaded",
            fix="restart the machine",
            source="nvidia-smi and vLLM need the kernel module",
        )
        return "restart"
    findings.passed(
        "driver.branch",
        "The NVIDIA driver is new enough",
        observed=str(seen),
        required=f"branch {need} or newer",
        source=source,
    )
    return "none"


def _missing(nvidia: Mapping[str, Any], findings: Findings) -> None:
    findings.blocker(
        "driver.missing",
        "NVIDIA cards are in the machine and no driver serves them",
        observed=f"{nvidia['pci_devices']} card(s), driver "
        f"{nvidia.get('driver_loaded') or 'not loaded'}",
        required="nvidia-smi lists the cards",
        fix="install NVIDIA's driver, branch 580 or newer, from NVIDIA's own repository, "
        "and restart the machine",
        source="stock Debian 12 and 13 ship drivers that are too old for Kimi's INT4",
    )
