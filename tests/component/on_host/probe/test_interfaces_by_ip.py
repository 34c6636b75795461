"""Interfaces of this machine: `ip` and the kernel's files say the same."""

from __future__ import annotations

import json
import subprocess

from kimi_prov.on_host.probe import interfaces
from kimi_prov.on_host.system.machine import Machine


def test_ip_and_the_kernel_s_files_say_the_same_of_this_machine() -> None:
    live = Machine()
    rows = json.loads(subprocess.check_output(["ip", "-json", "address"], text=True))
    listed = {
        row["ifname"]: [
            f"{entry['local']}/{entry['prefixlen']}"
            for entry in row["addr_info"]
            if entry["scope"] == "global"
        ]
        for row in rows
    }
    by_probe = {row["name"]: row["addresses"] for row in interfaces.list_interfaces(live)}
    assert by_probe == {name: own for name, own in listed.items() if name in by_probe}
    assert all(name in by_probe for name, own in listed.items() if own)
