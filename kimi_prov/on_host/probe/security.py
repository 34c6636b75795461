"""The kernel's security modules, as far as they may block what one of our units does."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.machine import SecurityFacts, SelinuxMode
    from kimi_prov.on_host.system.machine import Machine

_LSM = "/sys/kernel/security/lsm"
_ENFORCE = "/sys/fs/selinux/enforce"
# Readable to root alone: a line is `name (mode)`.
_PROFILES = "/sys/kernel/security/apparmor/profiles"
_LOADED = re.compile(r"^(.+) \((enforce|kill)\)$", re.MULTILINE)
# Programs of the distribution that our units run.
_PROGRAMS = ("haproxy", "nft")
_SELINUX: dict[str, SelinuxMode] = {"0": "permissive", "1": "enforcing"}


def describe_security(machine: Machine) -> SecurityFacts:
    """Return the active modules, SELinux's mode, and enforced profiles of the programs we run.

    `modules` is None where the kernel does not show them, `apparmor_enforced` where its profiles
    cannot be read.
    """
    modules = machine.read(_LSM)
    profiles = machine.read(_PROFILES)
    return {
        "modules": None if modules is None else [name for name in modules.split(",") if name],
        "selinux": _SELINUX.get((machine.read(_ENFORCE) or "").strip()),
        "apparmor_enforced": None if profiles is None else _list_our_profiles(profiles),
    }


def _list_our_profiles(profiles: str) -> list[str]:
    """Return enforced profiles by the names of what they confine: a path, or a bare name."""
    names = [name for name, _ in _LOADED.findall(profiles)]
    return sorted(name for name in names if os.path.basename(name) in _PROGRAMS)
