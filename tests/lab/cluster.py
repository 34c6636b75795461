"""A SLURM cluster of lab hosts, as its users know one: a login node, two compute nodes, no root.

The controller is the login node as well. Real are Debian's slurmctld, slurmd and munge, their
scheduling, signals, requeue and preemption, and processor binding. What is not:

- /shared is one folder of the control machine's, bound into every host: one kernel's locks and
  page cache, so that nothing is proven of a network file system's.
- No control group holds a job to its cores and memory, for the lab's hosts have none to give:
  processes are tracked by their parents, cores bound by affinity, memory is counted by the
  scheduler alone.
- No slurmdbd: any account and any QOS is taken as given, `sacct` knows nothing.
- Both nodes have the same processors and the same memory below them.
"""

from __future__ import annotations

import base64
import os
import secrets
import shlex
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import yaml
from machines import make_lab, run
from waiting import until

from kimi_prov.lab import operations as lab_command
from kimi_prov.lab.inventory import identify_lab
from kimi_prov.lab.state import LabState, find_state_home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host, Lab

CONTROLLER = "login"
NODES = ("c1", "c2")
SHARED = "/shared"
# Names and numbers, the same on every host, as a directory service would have them.
USERS = {"alice": 2001, "bob": 2002}
# slurm-wlm is all of it, so that one image does for all three hosts; the rest is what a site has
# for its users' jobs.
PACKAGES = (
    *("slurm-wlm", "munge", "python3-venv", "python3-dev", "gcc", "g++", "libc6-dev"),
    *("openssl", "numactl", "libnuma1", "curl", "environment-modules", "haproxy"),
)
# Of memory, the part that the scheduler gives out.
MEMORY_GIVEN = 0.8

# Waits are a site's in minutes; here a test waits for each of them.
# cred_expire is also how long a requeued job has to wait.
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={controller}
AuthType=auth/munge
AuthInfo=cred_expire=10
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1024
GresTypes=gpu
MpiDefault=none
SchedulerParameters=bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmdTimeout=10
KillWait=10
MinJobAge=3600
NodeName={nodes} Sockets=1 CoresPerSocket={cores} ThreadsPerCore=1 RealMemory={memory} \
Gres=gpu:{cards} Feature=lab State=UNKNOWN
PartitionName=main Nodes={nodes} Default=YES MaxTime=1-00:00:00 DefaultTime=10 \
PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
PartitionName=urgent Nodes={nodes} MaxTime=01:00:00 DefaultTime=10 \
PriorityTier=10 PreemptMode=OFF
"""
# Devices that stand in for cards: the scheduler hands them out, and nothing computes on them.
CARDS = ("/dev/full", "/dev/zero")
# Where control groups of both versions are mounted, slurmd does not start before it is told which;
# it uses neither here.
CONTROL_GROUPS = "CgroupPlugin=cgroup/v1\\n"

# A module of the site's, for jobs that load one.
MODULE = "site/1.0"
_MODULE_FILE = """\
#%Module1.0
setenv SITE_MODULE loaded
"""

_EVERY_HOST = r"""
set -e
{users}
cat > /etc/slurm/slurm.conf <<'END'
{configuration}END
printf 'Name=gpu File=%s\n' {cards} > /etc/slurm/gres.conf
printf '{control_groups}' > /etc/slurm/cgroup.conf
install -D -m 0644 /dev/stdin /usr/share/modules/modulefiles/{module} <<'END'
{module_file}END
cat > /etc/pip.conf <<'END'
[global]
{pip}
END
cat >> /etc/ssl/certs/ca-certificates.crt <<'END'
{authorities}
END
install -m 0600 /dev/null /etc/munge/munge.key.new
base64 -d <<<{munge_key} > /etc/munge/munge.key.new
chown munge: /etc/munge/munge.key.new
mv /etc/munge/munge.key.new /etc/munge/munge.key
chmod 0400 /etc/munge/munge.key
systemctl restart munge
"""
_PIP = {"index-url": "kimi_pip_index_url", "cert": "kimi_ca_bundle"}
_USER = (
    "id -u {name} >/dev/null 2>&1 || useradd --no-create-home --home-dir {shared}/home/{name} "
    "--shell /bin/bash --uid {number} {name}"
)
_SHARED_FOLDERS = r"""
mkdir -p {shared}/home
for name in {users}; do
  install -d -m 0700 -o "$name" -g "$name" {shared}/home/"$name"
done
install -d -m 1777 {shared}/projects
"""
_CONTROLLER = r"""
systemctl disable -q --now slurmd
systemctl start slurmctld
"""
# Users come to a compute node by a job alone.
_COMPUTE = r"""
printf 'AllowUsers root operator\n' > /etc/ssh/sshd_config.d/compute.conf
systemctl reload ssh
systemctl disable -q --now slurmctld
systemctl start slurmd
"""


@dataclass
class Cluster:
    """The cluster's hosts; commands run on the login node as a user who logged in there."""

    lab: Lab
    _logins: dict[str, list[str]] = field(default_factory=dict)

    @property
    def controller(self) -> Host:
        """The login node, which runs slurmctld as well."""
        return self.lab.hosts[CONTROLLER]

    @property
    def inventory(self) -> Path:
        """The lab's inventory."""
        return self.lab.inventory

    @property
    def site(self) -> dict[str, str]:
        """How the lab's hosts reach packages, as the product's variables."""
        made = self.inventory / "group_vars" / "all" / "lab.yml"
        return dict(yaml.safe_load(made.read_text()))

    def node(self, name: str) -> Host:
        """A compute node."""
        assert name in NODES
        return self.lab.hosts[name]

    def folder(self, *parts: str) -> Path:
        """Where a path below /shared lies on the control machine."""
        state = LabState(find_state_home() / identify_lab(self.inventory)[0])
        return state.shared(SHARED).joinpath(*parts)

    def login(self, user: str = "alice") -> list[str]:
        """The ssh command line of a user on the login node; options go before its last word."""
        if user not in self._logins:
            *options, target = lab_command.make_ssh_command(self.inventory, CONTROLLER)
            self._logins[user] = [*options, f"{user}@{target.partition('@')[2]}"]
        return self._logins[user]

    def tried(
        self, command: str, user: str = "alice", timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """A shell command on the login node, as that user, however it ends."""
        return run(*self.login(user), command, timeout=timeout)

    def run(self, command: str, user: str = "alice", timeout: float = 120) -> str:
        """What a shell command prints there; it has to succeed."""
        done = self.tried(command, user, timeout)
        assert done.returncode == 0, f"{user}: {command}\nrc {done.returncode}\n{done.stderr}"
        return done.stdout.strip()

    def submit(self, script: str, *options: str, user: str = "alice") -> int:
        """Hand in a batch script's text, from the user's home; the number of the job."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        command = shlex.join(["sbatch", "--parsable", *options])
        return int(_fed([*self.login(user), command], text).partition(";")[0])

    def job(self, number: int) -> dict[str, str]:
        """What `scontrol show job` tells of a job, by its own names; kept an hour after the end."""
        return _fields(self.run(f"scontrol --oneliner show job {number}"))

    def state(self, number: int) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT, NODE_FAIL, CANCELLED, ..."""
        return self.job(number)["JobState"]

    def wait_job(self, number: int, *states: str, hangs_s: float = 120) -> dict[str, str]:
        """Wait until a job is in one of the states; its fields then."""
        assert until(lambda: self.state(number) in states, hangs_s), (states, self.job(number))
        return self.job(number)

    def output(self, number: int) -> str:
        """What a job has printed so far; nothing where it has not begun."""
        path = self.job(number)["StdOut"]
        return self.run(f"cat {shlex.quote(path)} 2>/dev/null || true", user="root")

    def wait_output(self, number: int, text: str, hangs_s: float = 120) -> str:
        """Wait until a job has printed a text; all that it has printed then."""
        assert until(lambda: text in self.output(number), hangs_s), (
            text,
            self.output(number),
            self.job(number),
        )
        return self.output(number)

    def node_state(self, name: str) -> str:
        """`idle`, `mixed`, `allocated`, `down*`, ... as sinfo has it."""
        return self.run(f"sinfo --noheader --Node --nodes {name} --partition main --format %T")

    def wait_nodes(
        self, *states: str, nodes: tuple[str, ...] = NODES, hangs_s: float = 240
    ) -> None:
        """Wait until each of the nodes is in one of the states.

        One that came back is completing until slurmctld asks again after the jobs it died with.
        """
        assert until(lambda: all(self.node_state(n) in states for n in nodes), hangs_s), self.run(
            "sinfo --long --Node; scontrol show nodes"
        )

    def clear(self) -> None:
        """Cancel all jobs, and wait until both nodes are idle."""
        self.run(f"scancel --user {','.join(USERS)}; scancel --signal KILL --user alice", "root")
        self.wait_nodes("idle")

    @contextmanager
    def tunnel(self, node: str, port: int, user: str = "alice") -> Iterator[int]:
        """A port of the control machine's loopback that leads to a node's, through the login node.

        As `ssh -N -L` makes it on a user's own computer.
        """
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            local = int(held.getsockname()[1])
        *options, target = self.login(user)
        forward = ["-N", "-o", "ExitOnForwardFailure=yes", "-L", f"{local}:{node}:{port}"]
        with subprocess.Popen([*options, *forward, target]) as tunnel:
            try:
                assert until(lambda: _listens(local) or tunnel.poll() is not None)
                assert tunnel.poll() is None
                yield local
            finally:
                tunnel.terminate()

    @contextmanager
    def without_node(self, name: str) -> Iterator[None]:
        """Pull a node's plug, so that its jobs end with it; put it in again."""
        lab_command.switch_power(self.inventory, name, on=False, hard=True)
        try:
            yield
        finally:
            lab_command.switch_power(self.inventory, name, on=True)
            self.wait_nodes("idle", "mixed", "allocated", nodes=(name,), hangs_s=120)

    @contextmanager
    def cut_off(self, *names: str) -> Iterator[None]:
        """Compute nodes that reach the cluster and nothing beyond, as most sites have them."""
        for name in names:
            self.node(name).ssh(
                "ip -o route show default > /run/uplink && ip -6 -o route show default >"
                " /run/uplink6 && ip route flush default && ip -6 route flush default"
            )
        try:
            yield
        finally:
            for name in names:
                self.node(name).ssh(
                    "xargs -rL1 ip route add < /run/uplink &&"
                    " xargs -rL1 ip -6 route add < /run/uplink6"
                )

    @contextmanager
    def full_home(self, user: str = "alice") -> Iterator[None]:
        """A user whose home takes no byte more, on any host; it is each host's own for the time."""
        home = f"{SHARED}/home/{user}"
        for host in self.lab.hosts.values():
            host.ssh(
                f"mount -t tmpfs -o size=64k,uid={USERS[user]},gid={USERS[user]},mode=0700"
                f" full {home} && {{ head -c 1M /dev/zero > {home}/full 2>/dev/null; true; }}"
            )
        try:
            yield
        finally:
            for host in self.lab.hosts.values():
                host.ssh(f"umount -l {home}")


def _configure(host: Host, script: str) -> None:
    """Run a script as root there; it comes by standard input, because it holds munge's key."""
    _fed(lab_command.make_ssh_command(host.inventory, host.name, ["bash"]), script)


def _fed(argv: list[str], text: str) -> str:
    done = subprocess.run(
        argv, input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{argv[-1]}: rc {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def _fields(line: str) -> dict[str, str]:
    """`Key=value` pairs of scontrol's one line; a word without `=` belongs to the value before."""
    found: dict[str, str] = {}
    key = ""
    for word in line.split():
        name, equals, value = word.partition("=")
        if equals and name[:1].isupper():
            key = name
            found[key] = value
        elif key:
            found[key] += f" {word}"
    return found


def declare(folder: Path, network: str) -> Lab:
    """Write the inventory of the cluster's hosts; `network`: three octets of a /24."""
    return make_lab(
        folder / "inv",
        network,
        nodes=[CONTROLLER, *NODES],
        settings={
            "lab_packages": list(PACKAGES),
            "lab_shared": [SHARED],
        },
    )


def start(lab: Lab) -> Cluster:
    """Bring the hosts up and make a cluster of them; both nodes are idle then."""
    lab.up()
    cluster = Cluster(lab)
    common = _common(lab)
    folders = _SHARED_FOLDERS.format(shared=SHARED, users=" ".join(USERS))
    _configure(cluster.controller, common + folders + _CONTROLLER)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: _configure(cluster.node(name), common + _COMPUTE), NODES))
    cluster.wait_nodes("idle")
    return cluster


def _common(lab: Lab) -> str:
    """The script that every host runs as root, the same key for munge in each.

    Users find the site's package index and trusted authorities as the control machine has them.
    """
    made = Cluster(lab).site
    configuration = CONFIGURATION.format(
        controller=CONTROLLER,
        nodes=",".join(NODES),
        cores=os.cpu_count(),
        cards=len(CARDS),
        memory=int(psutil.virtual_memory().total / 2**20 * MEMORY_GIVEN),
    )
    return _EVERY_HOST.format(
        users="\n".join(
            _USER.format(shared=SHARED, name=name, number=number) for name, number in USERS.items()
        ),
        configuration=configuration,
        cards=" ".join(CARDS),
        control_groups=CONTROL_GROUPS,
        module=MODULE,
        module_file=_MODULE_FILE,
        pip="\n".join(
            f"{option} = {made[variable]}" for option, variable in _PIP.items() if variable in made
        ),
        authorities=Path(made["kimi_ca_bundle"]).read_text() if "kimi_ca_bundle" in made else "",
        munge_key=base64.b64encode(secrets.token_bytes(128)).decode(),
    )
