"""Code of the engine on a machine: who it is, what holds it, and that it ends with who waits."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from machines import KIMI_PROV, kimi_prov
from waiting import HANGS_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host

pytestmark = pytest.mark.lab

SEEN = "/srv/kimi/cache/seen"
SITE = "/srv/kimi/engine/lib/python3*/site-packages"
# Whatever starts the environment's Python runs this first.
POISON = f"""
import os, pwd, subprocess
def written(path):
    try:
        open(path, "w").close()
    except OSError:
        return 0
    os.unlink(path)
    return 1
places = ("/srv/kimi/poison", "/etc/poison", "/var/lib/kimi/poison", "/run/poison", "/root/poison")
with open("/proc/self/cgroup") as stream:
    unit = stream.read().strip().rpartition("/")[2]
def binds():
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except PermissionError:
        return "stays"
    return "binds"
row = [pwd.getpwuid(os.getuid()).pw_name, unit, str(sum(map(written, places))), binds()]
with open({SEEN!r}, "a") as stream:
    stream.write(" ".join(row) + "\\n")
"""
NCCL = {"ranks": 1, "env": {"A": "b"}, "proof": {"engine": "none"}}


@pytest.fixture
def poisoned(served_host: Host) -> Iterator[Host]:
    """The engine's environment has code of somebody else in it."""
    served_host.ssh(
        f"cd {SITE} && echo import poison > poison.pth && cat > poison.py <<'END'\n{POISON}\nEND"
    )
    yield served_host
    served_host.ssh(f"rm -f {SITE}/poison.p* {SEEN}")


def target(host: Host, command: str, request: object) -> str:
    told = json.dumps(request)
    program = f"python3 /srv/kimi/lib/kimi-target.pyz {command}"
    return host.ssh(f"{program} <<'END'\n{told}\nEND", check=False, timeout=600)


def seen(host: Host) -> set[str]:
    """Who it was since the last time."""
    return set(host.ssh(f"cat {SEEN}; rm -f {SEEN}").splitlines())


def test_a_poisoned_environment_is_the_service_s_user_and_writes_nowhere(poisoned: Host) -> None:
    held = {"kimi kimi-sandbox.service 0 binds"}
    poisoned.ssh("rm -rf /srv/kimi/engine/.accepted")
    done = poisoned.apply("--tags", "engine")
    assert done.returncode == 0, done.stdout + done.stderr
    # On each CPU in turn it would wait behind the engine that serves.
    assert seen(poisoned) == {"kimi kimi-sandbox.service 0 stays"}, "the parser"
    python = "/srv/kimi/engine/bin/python"
    told = target(poisoned, "nccl-proof", {"python": python, **NCCL})
    assert "the NCCL all-reduce over all GPUs failed" in told, "here is no GPU"
    assert seen(poisoned) == held, "the proof"
    assert not poisoned.ssh("ls /var/lib/kimi/state/nccl.json", check=False)
    done = kimi_prov("bench", poisoned.inventory, "--limit", poisoned.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert seen(poisoned) == held, "the bench"


def test_what_an_interrupted_run_started_ends(served_host: Host) -> None:
    served_host.ssh("printf '#!/bin/sh\\nexec sleep 600\\n' > /opt/slow && chmod 755 /opt/slow")
    told = json.dumps({"python": "/opt/slow", **NCCL})
    program = f"python3 /srv/kimi/lib/kimi-target.pyz nccl-proof <<'END'\n{told}\nEND"
    argv = [KIMI_PROV, "lab", "ssh", str(served_host.inventory), served_host.name, program]

    def state() -> str:
        return served_host.ssh("systemctl is-active kimi-sandbox.service", check=False).strip()

    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as running:
        assert until(lambda: state() == "active")
        running.kill()
        running.wait(HANGS_S)
    assert until(lambda: state() == "inactive")
    served_host.ssh("rm /opt/slow; ! ls /run/kimi/sandbox/*.env 2>/dev/null")


def test_no_unit_s_exposure_is_above_two_and_a_half(served_host: Host) -> None:
    """As systemd there sees the units that are loaded, instances and drop-ins included."""
    listed = "systemctl list-units --state=active --plain --no-legend --type=service 'kimi-*'"
    names = [line.split()[0] for line in served_host.ssh(listed).splitlines()]
    assert {"kimi-serve@0.service", "kimi-proxy.service", "kimi-firewall.service"} <= set(names)
    for name in names:
        told = served_host.ssh(f"systemd-analyze security --no-pager '{name}' | tail -2")
        assert float(told.partition(f"{name}:")[2].split()[0]) <= 2.5, told
