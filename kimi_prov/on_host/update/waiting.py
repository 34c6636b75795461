"""Updates of the operating system that wait for installation, or for a restart.

Read from apt's own simulation and its present lists: nothing is fetched and nothing changed.

Decides: which packages are updated, and what needs a restart.
Applied by: playbooks/update.yml, roles/update, roles/reboot.
Held by: tests/unit/on_host/update/test_waiting.py,
  tests/component/on_host/update/test_waiting_packages.py, tests/component/roles/test_site_hosts.py,
  tests/lab/test_update.py.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, NamedTuple, cast

from kimi_prov.contract import paths, unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.driver import apt, steps
from kimi_prov.on_host.probe import nvidia_smi
from kimi_prov.on_host.system import boot, kernels, units
from kimi_prov.on_host.system.files import read_text
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.on_host.system.process import NOT_FOUND, limit_time, run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.contract.documents.status.host import PackageKind, UpdatesStatus, WaitingPackage

SECURITY, KERNEL, MICROCODE, DRIVER, OTHER = "security", "kernel", "microcode", "driver", "other"
# Packages that take effect only after a restart of the machine.
WANTS_RESTART = (KERNEL, MICROCODE)
# `Inst NAME [INSTALLED] (CANDIDATE LABEL:VERSION/ARCHIVE, ... [ARCHITECTURE])`; a new package has
# nothing installed.
_INST = re.compile(r"^Inst (\S+)(?: \[(\S+)\])? \((\S+)(?: (.*?))? \[\S+\]\)")
_KERNEL = re.compile(r"linux-(image|headers|modules|modules-extra|generic|virtual|kbuild)(-.+)?")
_MICROCODE = re.compile(r"(intel|amd64)-microcode")
# Debian's archive has a label of its own, Ubuntu's a suite.
_SECURITY = re.compile(r"^[^:]*security|/[\w.-]*-security$", re.IGNORECASE)
# An offline bundle mixes the distribution's archives: all that it has newer was chosen for these
# machines when it was made.
_BUNDLED = f"{paths.OFFLINE_LABEL}:"
_DEBIANS = re.compile(r"Debian (\S+)")
# A shared library, or a program of the distribution: keepalived links to nearly no library.
_MAPPED = re.compile(r"^\S+ r-xp .* (/\S+\.so\S*|/usr/s?bin/\S+) \(deleted\)$", re.MULTILINE)
_REBOOT = "/run/reboot-required"
# Seconds for all questions of `status` to apt and dpkg together: seconds are usual on a slow disk.
_TIMEOUT_S = 30.0
_OURS = (
    *(unit_names.ALL_SERVE, unit_names.RANK, unit_names.PROXY, unit_names.WEB),
    unit_names.GATEWAY_ADDRESS,
)


class Package(NamedTuple):
    """A package that waits; `installed` is empty where it is new."""

    name: str
    installed: str
    candidate: str
    kind: str
    held: bool = False


def parse(text: str, held: Iterable[str] = ()) -> list[Package]:
    """Parse what apt would install from the lines of its simulation."""
    kept = set(held)
    rows = (_INST.match(line) for line in text.splitlines())
    return [_parse_package(row, kept) for row in rows if row]


def _parse_package(row: re.Match[str], held: set[str]) -> Package:
    name = row[1].partition(":")[0]
    kind = _find_kind(name, row[3], (row[4] or "").split(", "))
    return Package(name, row[2] or "", row[3], kind, name in held)


def _find_kind(name: str, version: str, origins: list[str]) -> str:
    if steps.select_driver_packages({name: version}):
        return DRIVER
    if _MICROCODE.fullmatch(name):
        return MICROCODE
    if _KERNEL.fullmatch(name):
        return KERNEL
    chosen = any(_SECURITY.search(row) or row.startswith(_BUNDLED) for row in origins)
    return SECURITY if chosen else OTHER


def list_packages() -> list[Package] | None:
    """Return what waits by the present lists; None where apt is not the package manager.

    Raises HostError where apt fails: a broken package, or sources that it cannot read.
    """
    held = run("apt-mark", "showhold")
    if held.returncode == NOT_FOUND:
        return None
    if held.returncode != 0:
        raise HostError(apt.find_reason(held.stderr))
    # apt does not name a package that is held.
    simulated = apt.run_apt("apt-get", "dist-upgrade", "--simulate", "--ignore-hold")
    found = parse(simulated, held.stdout.split())
    rows = [row for row in found if row.installed and row.kind != DRIVER]
    return rows + _list_drivers(set(held.stdout.split()))


def _list_drivers(held: set[str]) -> list[Package]:
    """Return the driver where the sources have a newer version, even if it is pinned or held.

    Returned as one row, because its packages change together; named by the package that is queried.
    """
    have = steps.select_driver_packages(apt.list_installed())
    if not have:
        return []
    running = steps.find_main_version(have)
    name = next(n for n, v in sorted(have.items()) if apt.parse_upstream(v) == running)
    newest = max(apt.list_versions(name), key=_parse_upstream, default=have[name])
    if _parse_upstream(newest) <= kernels.parse_numbers(running):
        return []
    return [Package(name, have[name], newest, DRIVER, {*have} <= held)]


def _parse_upstream(version: str) -> list[int]:
    return kernels.parse_numbers(apt.parse_upstream(version))


class Effect(NamedTuple):
    """What runs and what is installed; empty where unknown."""

    kernel: str
    kernels: list[str]
    build: str
    build_installed: str
    driver: str
    driver_installed: str
    microcode: list[str]
    requested_by: list[str] | None


def list_restart_reasons(seen: Effect) -> list[str]:
    """Return why the machine has to restart; empty where it need not."""
    found = []
    newest = kernels.find_newest(seen.kernels)
    if newest and kernels.parse_numbers(newest) > kernels.parse_numbers(seen.kernel):
        found.append(f"kernel {seen.kernel} runs, {newest} is installed")
    elif seen.build and seen.build_installed and seen.build != seen.build_installed:
        found.append(f"kernel {seen.build} runs, {seen.build_installed} is installed")
    if seen.driver and seen.driver_installed and seen.driver != seen.driver_installed:
        found.append(f"NVIDIA's driver {seen.driver} runs, {seen.driver_installed} is installed")
    found += [f"{name} was installed after the start" for name in seen.microcode]
    if seen.requested_by is not None and not found:
        by = ", ".join(seen.requested_by[:5]) or "a package"
        found.append(f"{by} asked for it ({_REBOOT})")
    return found


def read_effect() -> Effect:
    """Read what runs, and what is installed."""
    release = os.uname()
    have = apt.list_installed()
    built = _DEBIANS.search(release.version)
    family = steps.select_driver_packages(have)
    module = nvidia_smi.parse_module(read_text("/proc/driver/nvidia/version"))["version"]
    return Effect(
        kernel=release.release,
        kernels=kernels.list_installed(),
        build=built[1] if built else "",
        build_installed=have.get(f"linux-image-{release.release}", ""),
        driver=module or "",
        driver_installed=steps.find_main_version(family) if family else "",
        microcode=[
            name
            for name in sorted(have)
            if _MICROCODE.fullmatch(name) and _is_installed_later(name)
        ],
        requested_by=_list_requesting_packages(),
    )


def _is_installed_later(package: str) -> bool:
    """Whether a package was installed after the machine was started."""
    try:
        changed = os.stat(f"/var/lib/dpkg/info/{package}.list").st_mtime
    except OSError:
        return False
    return changed > time.time() - boot.read_uptime_s()


def _list_requesting_packages() -> list[str] | None:
    if not os.path.exists(_REBOOT):
        return None
    return list(dict.fromkeys(read_text(f"{_REBOOT}.pkgs").split()))


def list_stale_units() -> list[str]:
    """Return our units with a process that runs a library that was replaced since it started."""
    states = units.read_properties(_OURS, ("ActiveState", "ControlGroup"))
    return sorted(
        name
        for name, state in states.items()
        if state.get("ControlGroup")
        and any(map(is_running_replaced, _list_pids(state["ControlGroup"])))
    )


def _list_pids(cgroup: str) -> list[str]:
    top = "/sys/fs/cgroup" + cgroup
    return [
        pid for folder, _, _ in os.walk(top) for pid in read_text(f"{folder}/cgroup.procs").split()
    ]


def is_running_replaced(pid: str) -> bool:
    """Return whether a process runs a library whose file does not exist any more."""
    try:
        return _MAPPED.search(read_text(f"/proc/{pid}/maps")) is not None
    except OSError:
        return False


def read_lists_age_s() -> int | None:
    """Return how old apt's lists are, in seconds; None where there are none."""
    folder = apt.find_lists_folder()
    times = [os.stat(path).st_mtime for path in Machine().glob(f"{folder}/*Release")]
    partial = f"{folder}/partial"
    if os.path.isdir(partial):
        # apt writes there at each refresh, even where nothing has changed.
        times.append(os.stat(partial).st_mtime)
    return max(0, int(time.time() - max(times))) if len(times) > 1 else None


def collect(patience_s: float = _TIMEOUT_S) -> UpdatesStatus | None:
    """Return the updates as `status` shows them; None where apt is not the package manager.

    Raises HostError where apt fails, or does not answer in `patience_s` seconds: a hanging apt
    would delay the machine's whole status.
    """
    with limit_time(patience_s, "apt"):
        return _collect()


def _describe_package(row: Package) -> WaitingPackage:
    return {
        "name": row.name,
        "installed": row.installed,
        "candidate": row.candidate,
        "kind": cast("PackageKind", row.kind),
        "held": row.held,
    }


def _collect() -> UpdatesStatus | None:
    found = list_packages()
    if found is None:
        return None
    return {
        "lists_age_seconds": read_lists_age_s(),
        "waiting": [_describe_package(row) for row in found if row.kind != OTHER],
        "others": sum(row.kind == OTHER for row in found),
        "restart_reasons": list_restart_reasons(read_effect()),
        "stale_units": list_stale_units(),
    }
