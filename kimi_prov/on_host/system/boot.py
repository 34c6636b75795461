"""When the machine was started."""

from __future__ import annotations

import os

from kimi_prov.on_host.system.files import read_text


def uptime_s() -> float:
    """Seconds since the first process was started: a container is younger than its kernel."""
    booted = float(read_text("/proc/uptime").split()[0])
    ticks = int(read_text("/proc/1/stat").rsplit(")", 1)[1].split()[19])
    return round(booted - ticks / os.sysconf("SC_CLK_TCK"), 1)
