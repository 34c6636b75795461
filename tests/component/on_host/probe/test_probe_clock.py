"""Whether a time server keeps the clock, asked of the kernel."""

from __future__ import annotations

import subprocess

from kimi_prov.on_host.probe import clock
from kimi_prov.on_host.system.machine import Machine


def test_whether_a_time_server_keeps_the_clock_is_what_the_kernel_says() -> None:
    """By another way: the C library's own reader of the same state."""
    told = clock.describe_clock(Machine())["synchronized"]
    script = (
        "import ctypes,sys\n"
        "state = ctypes.CDLL(None).ntp_gettime(ctypes.create_string_buffer(256))\n"
        "print(state != 5)"
    )
    by_other = subprocess.run(
        ["/usr/bin/python3", "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert str(told) == by_other.strip()
