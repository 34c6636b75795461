"""What a run started is ended, and nobody waits for what has ended already."""

from __future__ import annotations

import subprocess
import time

import psutil

from kimi_prov.runner import cancel


def test_a_process_that_nobody_collects_is_not_waited_for() -> None:
    # The second `sleep` takes the shell's place and never asks how the first one ended.
    parent = subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; exec sleep 60"], stdout=subprocess.PIPE, text=True
    )
    try:
        child = psutil.Process(int(parent.stdout.readline()))
        began = time.monotonic()
        cancel.end_processes([child], grace_s=20)
        assert time.monotonic() - began < 10
        assert child.status() == psutil.STATUS_ZOMBIE
    finally:
        parent.kill()
        parent.communicate()


def test_a_process_that_does_not_want_to_end_is_killed() -> None:
    stubborn = subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert stubborn.stdout.readline() == "ready\n"
        cancel.end_processes([psutil.Process(stubborn.pid)], grace_s=0.3)
        assert stubborn.wait(10) < 0
    finally:
        stubborn.kill()
        stubborn.communicate()
