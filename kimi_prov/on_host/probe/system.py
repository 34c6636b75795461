"""Operating system, Python, memory, file systems and kernel settings."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import stat
import sys
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths
from kimi_prov.on_host.probe import cpu
from kimi_prov.on_host.system.machine import Machine, parse_fields

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.machine import (
        CgroupHierarchy,
        ChoiceFacts,
        FilesystemFacts,
        HostFacts,
        OtherPython,
        PythonFacts,
        SysctlFacts,
        TunableFacts,
    )

SYSCTLS = (
    "kernel.numa_balancing",
    "vm.max_map_count",
    "vm.overcommit_memory",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
)
THP = "/sys/kernel/mm/transparent_hugepage/enabled"
GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
# The driver's packages build an initramfs in /boot.
_PLACES = ("/", "/boot", "/etc", "/var", "/srv", paths.ROOT, paths.ENGINES, paths.MODELS)
# Options of a mount that decide what can be done on it.
_TELLING = ("nodev", "noexec", "nosuid", "ro")


def describe_host(machine: Machine) -> HostFacts:
    """Return distribution, kernel, C library, and the virtualisation that the machine runs in."""
    release = parse_fields(machine.read("/etc/os-release"), "=")
    version = re.search(r"systemd (\d+)", machine.run(["systemctl", "--version"]) or "")
    identity = machine.read("/etc/machine-id")
    return {
        "hostname": platform.node() if machine.live else machine.read("/etc/hostname"),
        "os": {
            "id": release.get("ID"),
            "version_id": release.get("VERSION_ID"),
            "codename": release.get("VERSION_CODENAME"),
            "pretty": release.get("PRETTY_NAME"),
        },
        "kernel": machine.read("/proc/sys/kernel/osrelease"),
        "arch": platform.machine() if machine.live else cpu.read_lscpu(machine).get("Architecture"),
        "glibc": _find_glibc(machine),
        "virtualization": _find_virtualization(machine, "--vm"),
        "container": machine.read("/run/systemd/container")
        or _find_virtualization(machine, "--container"),
        "systemd_version": int(version.group(1)) if version else None,
        "systemd_running": machine.exists("/run/systemd/system") if machine.live else None,
        # Identifies a machine, also under two names, without disclosing the id.
        "machine_id_hash": hashlib.sha256(f"kimi-prov:{identity}".encode()).hexdigest()[:32]
        if identity
        else None,
        "root": os.geteuid() == 0 if machine.live else None,
        "secure_boot": _has_secure_boot(machine),
    }


def _has_secure_boot(machine: Machine) -> bool | None:
    """Return whether the firmware accepts only signed modules; None without EFI."""
    if not machine.exists("/sys/firmware"):
        return None
    if not machine.exists("/sys/firmware/efi"):
        return False
    found = machine.glob("/sys/firmware/efi/efivars/SecureBoot-*")
    # Four bytes of attributes, then the value.
    value = machine.read(found[0]) if found else None
    return value[-1] == "\x01" if value else None


def describe_python(machine: Machine) -> PythonFacts:
    """Return the Python that runs the probe, and others for which an engine could be installed."""
    others: list[OtherPython] = [
        {"path": path, "version": path.rsplit("python", 1)[1]}
        for path in machine.glob("/usr/bin/python3.*")
        if re.fullmatch(r"/usr/bin/python3\.\d+", path)
    ]
    if not machine.live:
        return {"path": None, "version": None, "has_venv": None, "others": others}
    return {
        "path": sys.executable or None,
        "version": platform.python_version(),
        "has_venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
        "others": others,
    }


def read_shm_bytes(machine: Machine) -> int | None:
    """Return the size of /dev/shm, through which an engine's processes communicate."""
    place = "/dev/shm"  # noqa: S108
    return _measure_space(machine, place)[0] if machine.exists(place) else None


def list_filesystems(machine: Machine) -> list[FilesystemFacts]:
    """Return the file systems that kimi-prov writes to, each once, with the paths on it."""
    mounted = list_mounts(machine)
    if not mounted:
        return []
    found: dict[str, FilesystemFacts] = {}
    for place in _PLACES:
        existing = place
        while existing != "/" and not machine.exists(existing):
            existing = os.path.dirname(existing)
        real = os.path.realpath(machine.path(existing))[len(machine.root) :] or "/"
        mount = max((m for m in mounted if _is_below(real, m)), key=len, default="/")
        row = found.get(mount)
        if row is None:
            device, kind, options = mounted.get(mount, (None, None, []))
            total, free = _measure_space(machine, real)
            row = {
                "mount": mount,
                "device": device,
                "fstype": kind,
                "holds": [],
                "total_bytes": total,
                "free_bytes": free,
                "options": options,
                "linked": {},
                "writable": _may_root_write(machine, real),
            }
            found[mount] = row
        row["holds"].append(place)
        if real != existing:
            row["linked"][place] = real + place[len(existing) :]
    return list(found.values())


def _may_root_write(machine: Machine, path: str) -> bool | None:
    """Measure at the kernel, which asks the server of a network file system; None without root."""
    return os.access(path, os.W_OK) if machine.live and os.geteuid() == 0 else None


def describe_tunables(machine: Machine) -> TunableFacts:
    """Return kernel settings that the plan may change, and whether this machine allows it."""
    sysctl: dict[str, SysctlFacts] = {}
    for name in SYSCTLS:
        path = "/proc/sys/" + name.replace(".", "/")
        value = machine.read(path)
        if value is not None:
            sysctl[name] = {"value": value, "writable": _is_writable(machine, path)}
    return {
        "sysctl": sysctl,
        "thp": _read_choice(machine, THP, bracketed=True),
        "governor": _read_choice(machine, GOVERNOR, bracketed=False),
        "nofile_max": _read_nofile(machine),
    }


def _read_choice(machine: Machine, path: str, *, bracketed: bool) -> ChoiceFacts | None:
    """Read a setting with a fixed set of values; None where the machine has no such setting."""
    text = machine.read(path)
    if text is None:
        return None
    if bracketed:
        chosen = re.search(r"\[(\w+)\]", text)
        value = chosen.group(1) if chosen else None
        choices = text.replace("[", "").replace("]", "").split()
    else:
        value = text.strip()
        choices = (machine.read(path.replace("_governor", "_available_governors")) or "").split()
    return {"value": value, "choices": choices, "writable": _is_writable(machine, path)}


def _read_nofile(machine: Machine) -> int | None:
    """Return the open files that the first process may have: a unit cannot be given more."""
    match = re.search(r"Max open files\s+\d+\s+(\d+)", machine.read("/proc/1/limits") or "")
    return int(match.group(1)) if match else None


def _is_writable(machine: Machine, path: str) -> bool | None:
    """Return whether root could change it: not on a read-only mount, nor in another namespace.

    The mount and the owner are checked, not our own rights: the probe needs no root.
    """
    if not machine.live:
        return None
    try:
        node = os.stat(path)
        flags = os.statvfs(path).f_flag
    except OSError:
        return None
    own = node.st_uid == 0 and bool(node.st_mode & stat.S_IWUSR)
    return own and not flags & os.ST_RDONLY


def _find_glibc(machine: Machine) -> str | None:
    if not machine.live:
        return None
    try:
        words = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):
        return None
    return words[-1] if len(words) == 2 else None


def _find_virtualization(machine: Machine, kind: str) -> str | None:
    reported = machine.run(["systemd-detect-virt", kind])
    if reported is None and kind == "--vm":
        return _find_hypervisor(machine)
    answer = (reported or "").strip()
    return answer if answer and answer != "none" else None


def _find_hypervisor(machine: Machine) -> str | None:
    """Return the hypervisor by lscpu, where systemd-detect-virt is not available."""
    first = parse_fields((machine.read("/proc/cpuinfo") or "").split("\n\n")[0], ":")
    if "hypervisor" not in first.get("flags", "").split():
        return None
    vendor = cpu.read_lscpu(machine).get("Hypervisor vendor")
    return vendor.lower() if vendor else "vm"


def find_cgroup_hierarchy(machine: Machine) -> CgroupHierarchy | None:
    """Return systemd's control groups: unified (v2), legacy (v1), hybrid; None if unknown."""
    mounted = list_mounts(machine)
    kind = mounted.get("/sys/fs/cgroup", (None, None))[1]
    if kind == "cgroup2":
        return "unified"
    if kind is None:
        return None
    return "hybrid" if "/sys/fs/cgroup/unified" in mounted else "legacy"


def list_mounts(machine: Machine, process: str = "self") -> dict[str, Any]:
    """Map mount point to (device, kind, options); a later mount on a point hides the earlier.

    `process`: whose mounts; a unit's own may be read-only where the machine's are not.
    """
    found: dict[str, Any] = {}
    for line in (machine.read(f"/proc/{process}/mountinfo") or "").splitlines():
        left, mark, right = line.partition(" - ")
        words, tail = left.split(), right.split()
        if mark and len(words) > 4 and len(tail) > 1:
            point = re.sub(r"\\(\d{3})", lambda m: chr(int(m.group(1), 8)), words[4])
            # Options of the mount itself, and of the file system for all its mounts.
            options = {*",".join([*words[5:6], *tail[2:3]]).split(",")}
            found[point] = (tail[1], tail[0], [name for name in _TELLING if name in options])
    return found


def _is_below(path: str, mount: str) -> bool:
    return mount in ("/", path) or path.startswith(mount + "/")


def _measure_space(machine: Machine, path: str) -> tuple[int | None, int | None]:
    """Return the total and free bytes of a path's file system; None where they are unknown."""
    try:
        sizes = os.statvfs(machine.path(path))
    except OSError:
        return None, None
    return sizes.f_blocks * sizes.f_frsize, sizes.f_bavail * sizes.f_frsize
