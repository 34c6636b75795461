"""Which kernels are installed, and which of them the machine starts with next."""

from __future__ import annotations

import os
import re

from kimi_prov.on_host.system.machine import Machine

_RELEASE = re.compile(r"/boot/vmlinuz-(\d\S*)")


def list_installed() -> list[str]:
    """Return the releases of the kernels in /boot."""
    found = (_RELEASE.fullmatch(path) for path in Machine().glob("/boot/vmlinuz-*"))
    return [match[1] for match in found if match]


def parse_numbers(text: str) -> list[int]:
    """Return the numbers in a version or a kernel's release, by which versions are compared."""
    return [int(part) for part in re.findall(r"\d+", text)]


def find_newest(releases: list[str]) -> str:
    """Return the newest of these; empty where there is none."""
    return max(releases, key=parse_numbers, default="")


def list_needed() -> list[str]:
    """Return the running kernel, and the one that the next start brings where that is newer."""
    running = os.uname().release
    then = find_newest(list_installed())
    return [running, then] if then and parse_numbers(then) > parse_numbers(running) else [running]
