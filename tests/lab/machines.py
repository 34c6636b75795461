"""Lab hosts as the tests use them, and pictures of a machine that can be compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import yaml

from kimi_prov.on_host.endpoint import tls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

KIMI_PROV = str(Path(sys.executable).parent / "kimi-prov")
ANSIBLE_PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
# Seconds that no command here takes, a first apply on a machine with much else to do among them.
HANGS_S = 3600.0
CHECKOUT = Path(__file__).resolve().parents[2]

# Every file with its size, owner and times, but what logging in writes.
LISTING = (
    "find / -xdev -path /proc -prune -o -path /sys -prune -o -path /var/log -prune -o "
    "-path /run/systemd -prune -o -printf '%p %s %u %m %T@ %C@\\n' 2>/dev/null "
    "| grep -vE '^/run(/utmp|/user|/motd[^ ]*)? ' | sort"
)


def run(
    *argv: str,
    cwd: Path | None = None,
    timeout: float = HANGS_S,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, its output captured apart."""
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        check=False,
    )


def kimi_prov(*args: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would."""
    return run(KIMI_PROV, *map(str, args), **options)  # type: ignore[arg-type]


def newest_run(inventory: Path, command: str = "apply") -> Path:
    """The run folder of the last such command of an inventory; others may run at the same time."""
    state = Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state"))
    told: dict[Path, float] = {}
    for file in (state / "kimi-prov" / "runs").glob(f"*-{command}-*/result.json"):
        # The oldest of all inventories are removed as others come.
        with suppress(FileNotFoundError):
            if json.loads(file.read_text())["inventory"] == str(inventory):
                told[file.parent] = file.parent.stat().st_mtime
    return max(told, key=lambda path: told[path])


SIGNAL = """
for pid in $(cat /sys/fs/cgroup$(systemctl show -P ControlGroup %(unit)s)/cgroup.procs); do
  case "$(cat /proc/$pid/comm)" in %(name)s*) kill -%(signal)s $pid ;; esac
done
"""


@dataclass
class Host:
    """One machine of a lab."""

    name: str
    address: str
    inventory: Path

    def ssh(self, command: str, *, check: bool = True, timeout: float = 120) -> str:
        """Output of a shell command run there as root."""
        done = kimi_prov("lab", "ssh", self.inventory, self.name, command, timeout=timeout)
        if check and done.returncode:
            raise AssertionError(f"{self.name}: {command}\nrc {done.returncode}\n{done.stderr}")
        return done.stdout

    def signal(self, unit: str, name: str, signal: str) -> None:
        """Send a signal to those processes of a unit whose name begins so."""
        self.ssh(SIGNAL % {"unit": unit, "name": name, "signal": signal})

    def door(self) -> tuple[str, str]:
        """A key of the opened port and the fingerprint of its certificate."""
        key = self.ssh("cat /etc/kimi/keys/verify.key").strip()
        return key, tls.compute_fingerprint(self.ssh("cat /etc/kimi/proxy/tls.crt"))

    def apply(self, *args: str) -> subprocess.CompletedProcess[str]:
        """`kimi-prov apply` on this host alone."""
        return kimi_prov("apply", self.inventory, "--limit", self.name, *args)

    def playbook(self, *args: str) -> subprocess.CompletedProcess[str]:
        """The same with no wrapper."""
        site = CHECKOUT / "playbooks" / "site.yml"
        command = (ANSIBLE_PLAYBOOK, "-i", str(self.inventory), str(site), "--limit", self.name)
        return run(*command, *args, cwd=CHECKOUT)


@dataclass
class Lab:
    """Hosts under one inventory directory."""

    inventory: Path
    hosts: dict[str, Host] = field(default_factory=dict)

    def up(self) -> None:
        try:
            done = kimi_prov("lab", "up", self.inventory, timeout=600)
            assert done.returncode == 0, done.stderr
        except BaseException:
            # After Ctrl-C too: a fixture takes its hosts away only once all are up.
            self.down()
            raise

    def down(self) -> None:
        done = kimi_prov("lab", "down", self.inventory, timeout=600)
        assert done.returncode == 0, done.stderr

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the hosts, and remove them in any case: those of a failed fixture fill the disk."""
        self.up()
        try:
            yield
        finally:
            self.down()


def make_lab(
    inventory: Path,
    network: str,
    nodes: Iterable[str],
    outsiders: Iterable[str] = (),
    files: Iterable[Mapping[str, str]] = (),
    settings: Mapping[str, object] | None = None,
    **wishes: object,
) -> Lab:
    """Write an inventory of nspawn hosts; `network` is the first three octets of a /24.

    `files`: what is copied to the hosts beside the tiny model. `settings`: the lab's own, where
    they are other than a container's.
    """
    names = [*nodes, *outsiders]
    addresses = {name: f"{network}.{11 + index}" for index, name in enumerate(names)}

    def group(members: Iterable[str]) -> dict[str, object]:
        return {"hosts": {name: {"lab_address": addresses[name]} for name in members}}

    document = {
        "all": {
            "vars": {
                "lab_network": f"{network}.0/24",
                "lab_kind": "nspawn",
                "lab_image": "debian-12",
                "lab_files": [
                    {"src": "model:kimi-k2-lab", "dest": "/opt/models/kimi-k2-lab"},
                    *files,
                ],
                **(settings or {}),
            },
            "children": {"kimi": group(nodes), "kimi_outsiders": group(outsiders)},
        }
    }
    inventory.mkdir(parents=True)
    (inventory / "hosts.yml").write_text(yaml.safe_dump(document))
    (inventory / "group_vars").mkdir()
    variables = {
        "kimi_model": "kimi-k2-lab",
        "kimi_weights_source": "file:///opt/models/kimi-k2-lab",
        "kimi_allowed_networks": [f"{network}.1/32"],
        **wishes,
    }
    (inventory / "group_vars" / "kimi.yml").write_text(yaml.safe_dump(variables))
    hosts = {name: Host(name, address, inventory) for name, address in addresses.items()}
    return Lab(inventory, hosts)


PICTURE = r"""
import grp, hashlib, json, os, pwd, stat, subprocess, sys
skip = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/log", "/var/tmp", "/var/cache",
        "/var/lib/apt", "/var/lib/dpkg", "/var/lib/systemd", "/root/.ansible")
files = {}
for top, dirs, names in os.walk("/"):
    dirs[:] = [d for d in dirs if not (os.path.join(top, d)).startswith(skip)]
    for name in names + dirs:
        path = os.path.join(top, name)
        if path.startswith(skip):
            continue
        try:
            st = os.lstat(path)
            if stat.S_ISLNK(st.st_mode):
                what = "-> " + os.readlink(path)
            elif stat.S_ISREG(st.st_mode):
                with open(path, "rb") as handle:
                    what = hashlib.sha256(handle.read()).hexdigest()[:16]
            else:
                what = "dir"
        except OSError:
            continue
        files[path] = "%o %d:%d %s" % (st.st_mode, st.st_uid, st.st_gid, what)
def lines(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return []
    return sorted(line.strip() for line in done.stdout.splitlines() if line.strip())
sysctls = {}
for key in ("kernel.numa_balancing", "vm.swappiness", "vm.max_map_count", "vm.overcommit_memory",
            "net.core.somaxconn", "kernel.pid_max"):
    try:
        sysctls[key] = open("/proc/sys/" + key.replace(".", "/")).read().strip()
    except OSError:
        pass
print(json.dumps({
    "files": files,
    "units": [
        " ".join(line.split()[:2])
        for line in lines("systemctl", "list-unit-files", "--no-legend", "--no-pager")
        if "transient" not in line  # sessions come and go
    ],
    "running": [
        line.split()[0]
        for line in lines(
            "systemctl", "list-units", "--no-legend", "--no-pager", "--plain",
            "--state=active,failed", "--type=service,mount,socket,timer",
        )
    ],
    "mounts": lines("findmnt", "-rno", "TARGET,FSTYPE"),
    "nft": lines("nft", "list", "ruleset"),
    "sysctls": sysctls,
    "users": lines("getent", "passwd") + lines("getent", "group"),
    "listening": lines("ss", "-Hltn"),
}))
"""


def picture(host: Host) -> dict[str, object]:
    """What a machine looks like: files with hash and mode, units, mounts, rules, users, ports."""
    host.ssh("cat > /tmp/picture.py <<'EOF'\n" + PICTURE + "\nEOF")
    text = host.ssh("python3 /tmp/picture.py; rm -f /tmp/picture.py", timeout=300)
    return dict(json.loads(text))


def descendants(pid: int) -> list[psutil.Process]:
    """A process and all that came of it, sessions of their own included."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def kill_tree_when(argv: list[str], seen: str, *, delay: float = 0.0, timeout: float = 600) -> str:
    """Start a command, kill -9 its whole tree once its output says `seen`; return the output."""
    with subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        output = ""
        end = time.monotonic() + timeout
        for line in process.stdout:
            output += line
            if seen in line:
                break
            assert time.monotonic() < end, f"{seen!r} did not appear in:\n{output}"
        else:
            raise AssertionError(f"{seen!r} did not appear before the end:\n{output}")
        time.sleep(delay)
        for victim in descendants(process.pid):
            try:
                os.kill(victim.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    return output
