"""The NVIDIA driver: the branch that is needed, and what `apply` does to install it.

Decides: the driver.
Applied by: roles/nvidia_driver.
Held by: tests/unit/planner/software/test_driver_plan.py, tests/lab/test_driver.py.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kimi_prov.catalog import versions
from kimi_prov.contract.sizes import format_bytes

if TYPE_CHECKING:
    from kimi_prov.catalog.drivers import Repository
    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.gpus import NvidiaFacts
    from kimi_prov.contract.documents.plan.software import DriverAction, DriverPlan, RepositoryPlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

# Formats whose experts run in Marlin kernels.
_MARLIN = ("int4", "nvfp4", "mxfp4")
_PTX = (
    "an older one ends with `PTX JIT compilation failed` or `the provided PTX was compiled with an "
    "unsupported toolchain`"
)
_IMEX = re.compile(r"nvidia-imex(-\d+)?")
_CONSENT = "where nvidia_driver_reboot_ok is true"
# The largest initramfs with a driver's modules and firmware that we have seen has about 200 MB.
BOOT_DIR = "/boot"
MIN_BOOT_BYTES = 256 << 20
# NVIDIA recommends the open modules since Turing, and has no others for GPUs after Hopper.
_OPEN_SINCE = (7, 5)
NO_DRIVER: DriverPlan = {
    "required_branch": None,
    "action": "none",
    "restart": False,
    "version": None,
    "gpus": 0,
    "open_modules": False,
    "packages": [],
    "replaced": [],
    "fabric_manager": False,
    "repository": None,
}


def parse_branch(version: object) -> int:
    """Return the branch of a driver's version: 580 for "580.159.04", 0 for an unknown version."""
    return next(iter(versions.parse_version(str(version or ""))), 0)


def find_required_branch(
    host: Host, engine: Engine, catalogue: Catalogue, weights_format: str
) -> int | None:
    """Return the oldest branch that serves the engine's CUDA, its Marlin kernels and the GPUs."""
    if host.amd:
        return None
    branches = [catalogue.drivers.branch_for(engine.cuda) if engine.cuda else None]
    branches += [card.driver_branch for card in host.cards if card]
    if weights_format in _MARLIN:
        branches.append(engine.driver_branch)
    return max((branch for branch in branches if branch), default=engine.driver_branch)


def find_imex_package(nvidia: NvidiaFacts) -> tuple[str, str] | None:
    """Find name and version of the installed nvidia-imex package; None where there is none."""
    packages = nvidia.get("packages") or {}
    return next(((n, v) for n, v in packages.items() if _IMEX.fullmatch(n)), None)


@dataclass(frozen=True)
class _Machine:
    """The machine's present driver, and the version that it shall have."""

    host: Host
    nvidia: NvidiaFacts
    need: int
    version: str | None
    repository: Repository | None
    source: str

    @property
    def loaded(self) -> str | None:
        return self.nvidia.get("driver_loaded")

    @property
    def installed(self) -> str | None:
        return self.nvidia.get("driver_installed")

    @property
    def known(self) -> bool:
        """Whether the driver is known; a quote or a recording may not name it."""
        return bool(self.loaded or self.installed) or not self.host.described

    @property
    def open_required(self) -> bool:
        required = any(card and card.open_module_required for card in self.host.cards)
        return required or _parse_capability(self.host) >= (10, 0)

    @property
    def fabric(self) -> bool:
        """Whether NVSwitches are on this machine's bus; a virtual machine's are its host's."""
        return bool(self.nvidia.get("nvswitch_devices"))

    @property
    def remedy(self) -> str:
        words = f"install NVIDIA's driver, branch {self.need}, and restart the machine"
        if self.host.arm and self.repository is not None:
            return f"{words} yourself, from {self.repository.url}: `apply` refuses ARM machines"
        if self.repository is None or self.version is None:
            return words
        return f"{words}: kimi-prov apply does both ({self.version}), {_CONSENT}"


def make_document(
    host: Host,
    settings: Settings,
    engine: Engine,
    catalogue: Catalogue,
    weights_format: str,
    findings: Findings,
) -> DriverPlan:
    """Make the plan's `driver`: the required driver, and what `apply` does about it.

    `action`: none, install (packages change), restart (another version runs than is installed) or
    confirm (the machine restarted itself into this version, which has not answered since: where it
    does not answer, `apply` restores the version before it). `restart`: whether the action needs a
    restart of the machine. All other keys describe the required driver, before and after it.
    """
    nvidia = host.nvidia
    need = _choose_branch(host, engine, catalogue, weights_format, nvidia)
    if need is None:
        return {**NO_DRIVER}
    rule = next((row for row in catalogue.drivers.rules if row.name == "marlin-ptx"), None)
    machine = _Machine(
        host,
        nvidia,
        need,
        _choose_version(settings, catalogue, need, nvidia),
        catalogue.drivers.repository(host.system.id, host.system.version, host.system.arch),
        rule.source if rule else engine.source,
    )
    action = _choose_action(machine, settings, findings)
    if action == "install":
        _check_packages(machine, findings)
    packages, replaced, repository = _plan_packages(machine, settings)
    return {
        "required_branch": need,
        "action": action,
        "restart": action == "restart" or (action == "install" and _is_module_replaced(machine)),
        "version": machine.version,
        "gpus": int(nvidia.get("pci_devices") or len(host.gpu_bytes)),
        "open_modules": _parse_capability(host) >= _OPEN_SINCE,
        "fabric_manager": machine.fabric,
        "packages": packages,
        "replaced": replaced,
        "repository": repository,
    }


def _choose_branch(
    host: Host,
    engine: Engine,
    catalogue: Catalogue,
    weights_format: str,
    nvidia: NvidiaFacts,
) -> int | None:
    if host.gpu_bytes:
        return find_required_branch(host, engine, catalogue, weights_format)
    if not nvidia.get("pci_devices"):
        return None
    # Unknown cards need the newest branch of all rules.
    return max((row.driver_branch or 0 for row in catalogue.drivers.rules), default=0) or None


def _choose_version(
    settings: Settings, catalogue: Catalogue, need: int, nvidia: NvidiaFacts
) -> str | None:
    """Choose the version: the operator's, else the present one if new enough, else ours."""
    if not settings.auto("nvidia_driver_version"):
        return str(settings.nvidia_driver_version)
    present = nvidia.get("driver_installed") or nvidia.get("driver_loaded")
    if parse_branch(present) >= need:
        return str(present)
    return catalogue.drivers.release(need)


def _plan_packages(
    machine: _Machine, settings: Settings
) -> tuple[list[str], list[str], RepositoryPlan | None]:
    """Return the packages to install, those that they replace, and their repository.

    In a name `a|b` the first package that has the version counts.
    """
    row = machine.repository
    if row is None or machine.version is None:
        return [], [], None
    flavours = [row.closed_module, row.open_module]
    if _parse_capability(machine.host) >= _OPEN_SINCE:
        flavours.reverse()
    branch = str(parse_branch(machine.version))
    names = [*flavours[0], *row.userland, *(row.fabric if machine.fabric else ())]
    # An installed imex package with the old branch in its name has no newer version: apt would
    # remove it, so its successor is named.
    names += row.imex if find_imex_package(machine.nvidia) else ()
    url = str(settings.nvidia_repo_url or row.url).rstrip("/")
    replaced = [
        part for name in flavours[1] for part in name.replace("{branch}", branch).split("|")
    ]
    repository: RepositoryPlan = {
        "url": url,
        # apt recognises the repository's packages by this name.
        "host": urlsplit(url).hostname or "",
        "key_url": settings.nvidia_repo_key_url or f"{url}/{row.key}",
        "fingerprint": settings.nvidia_repo_key_fingerprint or row.fingerprint,
    }
    return [name.replace("{branch}", branch) for name in names], replaced, repository


def _parse_capability(host: Host) -> tuple[int, int]:
    """Parse the CUDA compute capability; unknown GPUs count as new ones."""
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", host.capability or "")
    return (int(match[1]), int(match[2])) if match else (9, 0)


def _is_module_replaced(machine: _Machine) -> bool:
    """Whether the required driver has another kernel module than the loaded one."""
    other = machine.open_required and machine.nvidia.get("open_module") is False
    return other or machine.version != machine.loaded


def _choose_action(machine: _Machine, settings: Settings, findings: Findings) -> DriverAction:
    """Choose the action for the driver, and report why."""
    loaded, installed, need = machine.loaded, machine.installed, machine.need
    needs = f"branch {need} or newer; {_PTX}"
    if not machine.known:
        findings.add(
            "driver.branch",
            severity="info",
            observed="unknown",
            required=needs,
            source=machine.source,
        )
        return "none"
    if machine.version and parse_branch(machine.version) < need:
        findings.add(
            "driver.version",
            observed=f"kimi_nvidia_driver_version: {machine.version}",
            required=needs,
            fix="remove kimi_nvidia_driver_version, or name a newer one",
            source=machine.source,
        )
        return "none"
    if loaded is None and installed is None:
        findings.add(
            "driver.missing",
            observed=f"{machine.nvidia.get('pci_devices')} card(s), no driver",
            required="nvidia-smi lists the cards",
            fix=machine.remedy,
        )
        return "install"
    return _choose_action_for_present(machine, settings, findings, needs)


def _choose_action_for_present(
    machine: _Machine, settings: Settings, findings: Findings, needs: str
) -> DriverAction:
    """Choose the action for a machine that has a driver, and report why."""
    loaded, installed, need = machine.loaded, machine.installed, machine.need
    present = str(installed or loaded)
    requested = not settings.auto("nvidia_driver_version") and present != machine.version
    if parse_branch(present) < need or requested:
        findings.add(
            "driver.branch",
            severity="blocker",
            wording=None if parse_branch(present) < need else "requested",
            observed=str(loaded or installed),
            required=needs if parse_branch(present) < need else str(machine.version),
            fix=machine.remedy,
            source=machine.source,
        )
        return "install"
    if _is_given_up(machine, present):
        _report_failure(machine, present, findings)
        return "none"
    confirms = _is_unconfirmed(machine, present)
    if loaded != installed and installed:
        return _report_unloaded(machine, findings, confirms=confirms)
    findings.add(
        "driver.branch",
        severity="pass",
        observed=present,
        required=f"branch {need} or newer",
        source=machine.source,
    )
    if confirms:
        return "confirm"
    return "install" if _is_incomplete(machine) else "none"


def _is_unconfirmed(machine: _Machine, present: str) -> bool:
    """Whether the machine restarted itself into this version, and no run has checked it since."""
    restarted = _read_state(machine.host.facts, "restarted")
    return bool(restarted.get("over")) and restarted.get("version") == present


def _is_given_up(machine: _Machine, present: str) -> bool:
    """Whether this version failed after its restart, is still installed, and still fails.

    Another restart would fail in the same way.
    """
    silent = machine.loaded != machine.installed or len(machine.host.gpu_bytes) < int(
        machine.nvidia.get("pci_devices") or 0
    )
    return silent and _read_state(machine.host.facts, "failed").get("version") == present


def _report_failure(machine: _Machine, version: str, findings: Findings) -> None:
    failed = _read_state(machine.host.facts, "failed")
    running = f"; {machine.loaded} runs" if machine.loaded else ""
    findings.add(
        "driver.failed_here",
        observed=f"{version}: {failed.get('why')}{running}",
        required="a version that works here",
        fix="set kimi_nvidia_driver_version to another; to try it again, remove "
        "/var/lib/kimi/state/driver.json",
    )


def _report_unloaded(machine: _Machine, findings: Findings, *, confirms: bool) -> DriverAction:
    """Report that the right driver is installed, but another one runs, or none."""
    fix = f"kimi-prov apply restarts the machine, {_CONSENT}; or restart it yourself"
    if confirms:
        fix = "kimi-prov apply waits for it, and goes back to the driver before it"
    if machine.loaded:
        findings.add(
            "driver.restart",
            observed=f"installed {machine.installed}, running {machine.loaded}",
            required="the same version",
            fix=f"{fix} (kernel modules are never swapped under a running system)",
        )
    else:
        findings.add(
            "driver.not_loaded",
            observed=f"installed {machine.installed}",
            required="the module loaded",
            fix=fix,
        )
    return "confirm" if confirms else "restart"


def _is_incomplete(machine: _Machine) -> bool:
    """Whether a new enough driver lacks its fabric manager, or has the wrong kind of modules."""
    if machine.repository is None:
        return False
    if machine.open_required and machine.nvidia.get("open_module") is False:
        return True
    manager = (machine.nvidia.get("fabric_manager") or {}).get("package_version")
    return machine.fabric and str(manager or "").partition("-")[0] != machine.version


def _check_packages(machine: _Machine, findings: Findings) -> None:
    """Report what prevents the installation of packages on this machine."""
    facts = machine.host.facts
    ours = (facts["kimi"].get("driver") or {}).get("held")
    packages = machine.nvidia.get("packages") or {}
    signed = machine.nvidia.get("module_key_enrolled")
    if facts["host"].get("secure_boot") and not signed:
        findings.add(
            "driver.secure_boot",
            observed="Secure Boot on, key of DKMS not enrolled",
            required="Secure Boot off, or DKMS's key enrolled",
            fix="turn Secure Boot off in the firmware, or  mokutil --import /var/lib/dkms/mok.pub  "
            "and confirm it at the next start",
        )
    _check_boot(facts, findings)
    held = sorted(set((facts.get("packages") or {}).get("held") or []) & set(packages))
    foreign = [name for name in held if name not in (ours if isinstance(ours, list) else ())]
    if foreign:
        findings.add(
            "driver.held",
            observed=", ".join(f"{name} {packages[name]}" for name in foreign),
            required=f"packages of {machine.version}",
            fix=f"if they may change: apt-mark unhold {shlex.join(foreign)}",
        )
    origin = facts.get("origin")
    probed = origin is not None and origin["kind"] == "probe"
    if machine.loaded and not packages and probed:
        findings.add(
            "driver.foreign",
            observed=f"{machine.loaded}, no package of it",
            required="packages, which can be replaced and brought back",
            fix="remove it (nvidia-uninstall, or the image's own way), and run this again",
        )
    if machine.version and _read_state(facts, "failed").get("version") == machine.version:
        _report_failure(machine, machine.version, findings)


def _check_boot(facts: Facts, findings: Findings) -> None:
    """Report a /boot without room for the new initramfs, where dpkg would stop half way."""
    row = next((r for r in facts["filesystems"] if BOOT_DIR in (r.get("holds") or ())), None)
    free = row.get("free_bytes") if row else None
    if row and free is not None and free < MIN_BOOT_BYTES:
        findings.add(
            "driver.boot",
            observed=f"{format_bytes(free)} free on {row['mount']}",
            required=f"{format_bytes(MIN_BOOT_BYTES)} for a new initramfs beside the old one",
            fix="remove kernels that are no longer used: apt-get autoremove --purge",
        )


def _read_state(facts: Facts, name: str) -> dict[str, Any]:
    """Return the machine's record of a version that `failed`, or that it was `restarted` for."""
    state = (facts["kimi"].get("driver") or {}).get(name)
    return state if isinstance(state, dict) else {}
