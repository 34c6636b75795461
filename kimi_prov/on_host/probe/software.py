"""Packages of interest, automatic upgrades, and libraries that break NCCL."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from kimi_prov.contract import paths
from kimi_prov.on_host.probe import package_manager

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.gpus import GibFacts
    from kimi_prov.contract.documents.facts.machine import PackageFacts
    from kimi_prov.on_host.system.machine import Machine

# The versions of these are reported; a plan may read only packages in this list, and those of a
# Python that is not the system's.
PACKAGES = (
    "ca-certificates",
    "firewalld",
    "g++",
    "gcc",
    "gpg",
    "haproxy",
    "libc6-dev",
    "libnuma1",
    "nftables",
    "numactl",
    "openssl",
    "prometheus-node-exporter",
    "python3-debian",
    "python3-dev",
    "python3-venv",
    "ufw",
)
_PYTHON = re.compile(r"python3\.\d+-(dev|venv)")
_DRIVER = re.compile(r"(lib)?nvidia-.*|cuda-drivers.*|unattended-upgrades")
_PACKAGE = re.compile(r"^Package: (.+)$", re.MULTILINE)
_VERSION = re.compile(r"^Version: (.+)$", re.MULTILINE)
_STATUS = re.compile(r"^Status: (\S+) (\S+) (\S+)$", re.MULTILINE)
# Restarts services whose libraries were upgraded, also those of others.
_NEEDRESTART = os.path.dirname(paths.NEEDRESTART)
_PERIODIC = re.compile(r"^\s*APT::Periodic::Unattended-Upgrade\s+\"(\w+)\"", re.MULTILINE)
# Google's images have these for machines of many nodes; on a single one NCCL fails with them.
_GIB = re.compile(r"/gib(/|$)")
_GIB_FILE = re.compile(r"(?<![a-z])gib(?![a-z])")
_GIB_FOLDERS = ("/usr/local/gib", "/opt/gib", "/usr/lib/gib")


class Packages:
    """The packages of interest that dpkg has installed."""

    def __init__(self, machine: Machine) -> None:
        status = machine.read("/var/lib/dpkg/status")
        self.known = status is not None
        self.installed: dict[str, str] = {}
        self.on_hold: list[str] = []
        for block in (status or "").split("\n\n"):
            name, version = _PACKAGE.search(block), _VERSION.search(block)
            state = _STATUS.search(block)
            if not name or not version or not state or state.group(3) != "installed":
                continue
            if state.group(1) == "hold":
                self.on_hold.append(name.group(1))
            known = _DRIVER.fullmatch(name.group(1)) or _PYTHON.fullmatch(name.group(1))
            if known or name.group(1) in PACKAGES:
                self.installed[name.group(1)] = version.group(1)

    def matching(self, pattern: str) -> dict[str, str]:
        """Return installed packages whose name matches, with their version."""
        known = re.compile(pattern)
        return {name: v for name, v in sorted(self.installed.items()) if known.fullmatch(name)}

    def version(self, pattern: str) -> str | None:
        """Return the upstream version of the first such package: `580.159.04` of `580.159.04-1`."""
        found = next(iter(self.matching(pattern).values()), None)
        return re.sub(r"^\d+:|-[^-]*$", "", found) if found else None

    def list_held(self, pattern: str) -> bool | None:
        """Return whether every such package is held back from upgrades; None without any."""
        found = self.matching(pattern)
        return all(name in self.on_hold for name in found) if found else None


def describe_packages(machine: Machine, found: Packages) -> PackageFacts:
    """Return installed packages of interest with their version; None without dpkg."""
    if not found.known:
        return {
            "installed": None,
            "held": None,
            "unattended_upgrades": None,
            "needrestart": None,
            "busy": None,
            "unfinished": None,
        }
    return {
        "installed": {
            name: version
            for name, version in found.installed.items()
            if name in PACKAGES or _PYTHON.fullmatch(name)
        },
        "held": sorted(found.on_hold),
        "unattended_upgrades": _has_unattended_upgrades(machine, found),
        "needrestart": machine.exists(_NEEDRESTART),
        "busy": package_manager.find_holder(machine),
        "unfinished": package_manager.list_unfinished(machine),
    }


def _has_unattended_upgrades(machine: Machine, found: Packages) -> bool | None:
    """Return whether the system upgrades itself: the package exists and its last switch is on."""
    if "unattended-upgrades" not in found.installed:
        return False
    switch = None
    for path in machine.glob("/etc/apt/apt.conf.d/*"):
        for match in _PERIODIC.finditer(machine.read(path) or ""):
            switch = match.group(1)
    return switch not in (None, "0", "false", "no")


def read_loader(machine: Machine) -> dict[str, list[str]] | None:
    """Return the folders that each file of /etc/ld.so.conf.d gives to the dynamic loader."""
    if not machine.exists("/etc/ld.so.conf.d"):
        return None
    return {
        path: [line.strip() for line in (machine.read(path) or "").splitlines() if line[:1] == "/"]
        for path in machine.glob("/etc/ld.so.conf.d/*.conf")
    }


def describe_gib(machine: Machine, configured: dict[str, list[str]] | None) -> GibFacts | None:
    """Return Google's NCCL plugins wherever the loader may find them; None where unknown."""
    if configured is None:
        return None
    files = sorted(
        path
        for path, folders in configured.items()
        if any(_GIB.search(folder) for folder in folders)
        or _GIB_FILE.search(os.path.basename(path))
    )
    known = (machine.run(["ldconfig", "-p"]) or "").splitlines()
    cached = sorted(
        {line.rsplit("=> ", 1)[1] for line in known if "=> " in line and _GIB.search(line)}
    )
    folders = [path for path in _GIB_FOLDERS if machine.exists(path)]
    return {
        "present": bool(files or cached or folders),
        "ld_conf": files,
        "cached": cached,
        "directories": folders,
    }
