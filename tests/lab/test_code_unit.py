"""Code that a model wrote tries to get out of its unit, on a host with a real systemd."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from machines import Host

pytestmark = pytest.mark.lab

PROGRAM = "/srv/kimi/lib/kimi-target.pyz"
TRIES = """
import os, socket, subprocess, sys
def tried(name, work):
    try:
        print(name, "GOT", repr(work())[:200], flush=True)
    except BaseException as error:
        print(name, "refused:", type(error).__name__, flush=True)
def connect(family, address):
    made = socket.socket(family, socket.SOCK_STREAM)
    made.settimeout(2)
    made.connect(address)
def reach(path):
    # Who may write to a socket's file may send to it.
    if not os.access(path, os.W_OK):
        raise PermissionError(path)
    return path
def written(path):
    with open(path, "w") as stream:
        stream.write("x")
for path in ("/etc/kimi/keys/verify.key", "/etc/kimi/plan.json", "/srv/kimi/lib/kimi-target.pyz",
        "/var/lib/kimi/state", "/etc/shadow", "/root/.bashrc", "/proc/1/environ"):
    tried("read " + path, lambda: open(path).read())
for path in ("/etc/kimi", "/srv/kimi", "/root", "/home", "/tmp", "/dev/shm", "/var/tmp"):
    tried("list " + path, lambda: os.listdir(path))
for name in ("private", "notify", "journal/socket", "journal/stdout", "journal/dev-log"):
    tried("reach " + name, lambda: reach("/run/systemd/" + name))
tried("reach /dev/log", lambda: reach("/dev/log"))
for path in ("/x", "/etc/x", "/tmp/x", "/var/tmp/x", "/dev/shm/x", "/run/x", "/usr/x", "x"):
    tried("write " + path, lambda: written(path))
tried("internet", lambda: connect(socket.AF_INET, ("127.0.0.1", 22)))
tried("internet6", lambda: connect(socket.AF_INET6, ("::1", 22)))
tried("unix", lambda: connect(socket.AF_UNIX, "/run/dbus/system_bus_socket"))
tried("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
tried("setuid", lambda: os.setuid(0))
tried("chroot", lambda: os.chroot("/"))
tried("kill", lambda: os.kill(1, 0))
tried("sudo", lambda: subprocess.run(["su", "-c", "id"], check=True, capture_output=True).stdout)
def call(name, *given):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*given) != 0:
        raise OSError(ctypes.get_errno(), name)
def syscall(number, *given):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(ctypes.c_long(number), *given)
    if found < 0:
        raise OSError(ctypes.get_errno(), "syscall %d" % number)
    return found
# io_uring_setup has this number on every architecture.
tried("io_uring", lambda: syscall(425, 8, b"\\0" * 120))
tried("fallocate", lambda: os.posix_fallocate(0, 0, 1 << 30))
tried("reopen", lambda: open("/proc/self/fd/0", "r+b"))
tried("truncate", lambda: os.truncate("/proc/self/fd/0", 1 << 30))
tried("unshare", lambda: call("unshare", 0x10000000))
tried("mount", lambda: call("mount", b"none", b"/mnt", b"tmpfs", 0, None))
tried("ptrace", lambda: call("ptrace", 16, 1, 0, 0))
def environment():
    own = ("USER", "LOGNAME")  # that of the unit
    found = {k: v for k, v in os.environ.items() if "kimi" in (k + v).lower() and k not in own}
    if not found:
        raise KeyError("nothing of ours")
    return found
tried("environment", environment)
print("ended", os.getuid() >= 61184, flush=True)
"""


def ran(served_host: Host, source: str) -> dict[str, Any]:
    told = json.dumps({"what": "code", "source": source})
    text = served_host.ssh(f"python3 -I {PROGRAM} suite ask <<'END'\n{told}\nEND", timeout=300)
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


def state(served_host: Host) -> str:
    return served_host.ssh("systemctl is-active kimi-code.service", check=False).strip()


def test_it_computes_and_its_output_comes_back(served_host: Host) -> None:
    found = ran(served_host, "import json\nprint(json.dumps(sum(range(10))))")
    assert (found["out"], found["ended"]) == ("45\n", "")
    assert state(served_host) == "inactive"


def test_no_way_out_leads_anywhere(served_host: Host) -> None:
    found = ran(served_host, TRIES)
    assert "GOT" not in found["out"], found["out"]
    assert found["out"].splitlines()[-1] == "ended True", found
    assert served_host.ssh("cat /etc/kimi/keys/verify.key").strip() not in json.dumps(found)
    assert not served_host.ssh("ls /x /etc/x /tmp/x /var/tmp/x /dev/shm/x 2>/dev/null", check=False)


def test_it_has_few_processes_and_none_outlives_it(served_host: Host) -> None:
    # Bounded, so that a limit that does not hold costs a test and not the machine.
    forks = (
        "import os, time\nmade = 0\nfor _ in range(200):\n    try:\n        if not os.fork():\n"
        "            time.sleep(600)\n    except OSError:\n        break\n    made += 1\n"
        "print('made', made, flush=True)\ntime.sleep(600)\n"
    )
    found = ran(served_host, forks)
    assert int(found["out"].split()[1]) < 40, found
    assert "ran longer than 20 s" in found["ended"], found
    assert state(served_host) in ("inactive", "failed")
    assert "kimi-code" not in served_host.ssh("systemd-cgls --no-pager", check=False)


@pytest.mark.parametrize(
    ("source", "ended"),
    [
        ("while True:\n    print('x' * 4096)\n", "wrote more than 65536 bytes"),
        ("import time\ntime.sleep(600)\n", "ran longer than 20 s"),
        ("held = b'x'\nwhile True:\n    held += held\n", ""),
        ("import os\nos.abort()\n", "exit status"),
        ("def broken(:\n", "exit status 1"),
    ],
)
def test_what_goes_beyond_its_limits_is_ended(served_host: Host, source: str, ended: str) -> None:
    found = ran(served_host, source)
    assert found["ended"], found
    assert ended in found["ended"]
    assert len(found["out"]) <= 70_000
    assert state(served_host) in ("inactive", "failed")


def test_nothing_of_the_unit_is_left(served_host: Host) -> None:
    ran(served_host, "print(1)")
    assert "not-found" in served_host.ssh("systemctl show -P LoadState kimi-code.service")
    assert "kimi-code" not in served_host.ssh(
        "getent passwd; ls /var/lib/private /run/systemd/transient"
    )
