"""When the machine was started."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from kimi_prov.on_host.system.machine import Machine


def read_boot_id(machine: Machine) -> str:
    """Return an id of this start: the boot's own id, and when the first process began.

    A container has no boot id of its own: it is the host's in a unit with its own /proc, and
    elsewhere one that the container's manager made up.
    """
    began = (machine.read("/proc/1/stat") or "").rpartition(")")[2].split()
    contained = machine.read("/run/systemd/container")
    boot_id = "" if contained else machine.read("/proc/sys/kernel/random/boot_id") or ""
    return f"{boot_id.strip()} {began[19] if len(began) > 19 else ''}".strip()


def read_uptime_s() -> float:
    """Return seconds since the first process started: a container is younger than its kernel."""
    booted = float(read_text("/proc/uptime").split()[0])
    ticks = int(read_text("/proc/1/stat").rsplit(")", 1)[1].split()[19])
    return round(booted - ticks / os.sysconf("SC_CLK_TCK"), 1)


def find_boot_time() -> float:
    """Return when the first process was started, in seconds since 1970."""
    return time.time() - read_uptime_s()
