"""Findings about the NVIDIA driver."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

_DRIVER_ROWS = "kimi_prov/catalog/drivers.yaml, and the engine's row in engines.yaml"

DEFINITIONS = (
    Definition(
        "driver.branch",
        title="The NVIDIA driver is too old for the engine's kernels",
        severities=("blocker", "info", "pass"),
        source=_DRIVER_ROWS,
        remedy="software",
        titles={
            "info": "Which NVIDIA driver is installed is not known",
            "pass": "The NVIDIA driver is new enough",
            "requested": "The NVIDIA driver is not the version that is asked for",
        },
        own_source=True,
        fixed_by_apply="driver",
    ),
    Definition(
        "driver.fabric_manager",
        title="The fabric manager is not of the driver's version, or missing on an NVSwitch "
        "machine",
        severities=("blocker", "pass"),
        source="NVIDIA's packaging: fabric manager and driver have to be of exactly one version",
        remedy="software",
        titles={"pass": "The NVSwitch fabric is ready"},
        fixed_by_apply="driver",
    ),
    Definition(
        "driver.failed_here",
        title="This version of the driver was tried on this machine and did not answer",
        severities=("blocker",),
        source="the machine went back by itself",
        remedy="setting",
    ),
    Definition(
        "driver.foreign",
        title="The NVIDIA driver that runs did not come as packages",
        severities=("blocker",),
        source="two installations of one driver overwrite each other's libraries",
        remedy="software",
    ),
    Definition(
        "driver.held",
        title="Somebody holds packages of another driver",
        severities=("blocker",),
        source="a hold is a person's decision",
        remedy="software",
    ),
    Definition(
        "driver.hold",
        title="Nothing holds the driver against unattended upgrades",
        severities=("warning", "info"),
        source="an upgrade changes libraries under a running module: `Driver/library version "
        "mismatch`",
        remedy="software",
    ),
    Definition(
        "driver.imex",
        title="nvidia-imex is not of the driver's version",
        severities=("warning",),
        source="NVIDIA's packaging: nvidia-imex and driver have to be of exactly one version",
        remedy="software",
    ),
    Definition(
        "driver.missing",
        title="NVIDIA cards are in the machine and no driver serves them",
        severities=("blocker",),
        source="stock Debian 12 and 13 ship drivers that are too old for Kimi's INT4",
        remedy="software",
        fixed_by_apply="driver",
    ),
    Definition(
        "driver.not_loaded",
        title="The NVIDIA driver is installed and its module is not loaded",
        severities=("warning",),
        source="nvidia-smi and vLLM need the kernel module",
        remedy="reboot",
        fixed_by_apply="driver",
    ),
    Definition(
        "driver.nscq",
        title="libnvidia-nscq is not of the driver's version",
        severities=("warning",),
        source="NVIDIA's packaging of libnvidia-nscq",
        remedy="software",
    ),
    Definition(
        "driver.open_module",
        title="Blackwell GPUs need NVIDIA's open kernel modules",
        severities=("blocker",),
        source="NVIDIA's driver README: the closed modules do not know GPUs after Hopper",
        remedy="reboot",
        fixed_by_apply="driver",
    ),
    Definition(
        "driver.persistence",
        title="Persistence mode is off: the driver unloads when nobody uses the GPUs",
        severities=("info",),
        source="NVIDIA driver persistence documentation",
        remedy="software",
    ),
    Definition(
        "driver.reboot",
        title="To {task} {version} the machine has to restart, and may not",
        severities=("blocker",),
        source="kernel modules are never swapped under a running system",
        remedy="setting",
    ),
    Definition(
        "driver.restart",
        title="The installed NVIDIA driver is not the one that runs",
        severities=("blocker",),
        source="reference 004, trouble 4",
        remedy="reboot",
        fixed_by_apply="driver",
    ),
    Definition(
        "driver.secure_boot",
        title="Secure Boot is on, and the firmware does not know the key of modules built here",
        severities=("blocker",),
        source="the kernel refuses modules that nobody signed",
        remedy="firmware",
    ),
    Definition(
        "driver.stock",
        title="The distribution's own driver is too old: NVIDIA's repository is needed",
        severities=("info",),
        source="Debian 12 ships branch 535, Debian 13 ships 550",
        remedy="none",
    ),
    Definition(
        "driver.version",
        title="The NVIDIA driver that is asked for is too old",
        severities=("blocker",),
        source=_DRIVER_ROWS,
        remedy="setting",
        own_source=True,
    ),
)
