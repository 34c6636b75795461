"""What systemd keeps from a unit's processes: one list, for installed and transient units alike.

Each kind of unit differs from it by what it needs, and says why.

Decides: what systemd keeps from the processes of a unit.
Applied by: templates of the roles.
Held by: tests/component/contract/test_protection.py, tests/lab/test_engine_code.py.
Decides: what code that a model wrote may do.
Held by: tests/component/contract/test_protection.py, tests/lab/test_code_unit.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kimi_prov.contract import paths

if TYPE_CHECKING:
    from collections.abc import Sequence

Settings = list[tuple[str, str]]

# The cards, their control device, unified memory and the capabilities of MIG and fabric, by the
# kernel's names of devices: a path is only allowed when it exists at the start of a unit, but the
# unit itself may make /dev/nvidia-uvm, which also needs `m`. The first driver's name differs
# between versions.
GPU_DEVICES = ("nvidia", "nvidia-frontend", "nvidiactl", "nvidia-uvm", "nvidia-caps*")
# The kernel's name of the files by which NCCL sends over InfiniBand and RoCE.
RDMA_DEVICE = "infiniband_verbs"
# What makes them: the driver's module before the unit's devices are fixed, the file after.
GPU_MODULE = "modprobe@nvidia_uvm.service"
GPU_FILES = "-+/usr/bin/nvidia-modprobe -u -c=0"
# Workers of an engine find each other on the loopback, the only network that is allowed.
LOOPBACK = "VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo"
_FAMILIES = {
    "none": ("AF_UNIX",),
    "loopback": ("AF_UNIX", "AF_INET", "AF_INET6"),
    "any": ("AF_UNIX", "AF_INET", "AF_INET6"),
}


@dataclass(frozen=True)
class Needs:
    """What a kind of unit may do beyond the minimum.

    `network`: none, loopback or any. `packets`: frames of the link, as ARP's. `tmp`: the machine's
    own /tmp. `processes`: to see those of others. `compiles`: to write code and run it.
    `own_users`: sees no user of the machine but its own, and needs no capabilities. `clock`: reads
    the kernel's clock state; without the capability it cannot set the clock.
    """

    network: str = "none"
    netlink: bool = False
    packets: bool = False
    capabilities: tuple[str, ...] = ()
    calls: tuple[str, ...] = ("@system-service",)
    without_calls: tuple[str, ...] = ()
    home: str = "yes"
    tmp: bool = False
    proc: bool = False
    processes: bool = False
    compiles: bool = False
    own_users: bool = False
    clock: bool = False


# An engine compiles kernels and reads /proc/cpuinfo. @resources has the calls that set NUMA policy
# and CPU affinity. oneDNN, Numba and CUTLASS's DSL write code in memory: vLLM on GPUs worked
# without this (docs/real-gpus.md), where none of them was used.
_ENGINE = Needs(
    calls=("@system-service", "@resources"),
    without_calls=("@privileged",),
    proc=True,
    compiles=True,
    own_users=True,
)
# Netlink: the interfaces are listed when the workers of an engine find each other.
KINDS: dict[str, Needs] = {
    "engine": replace(_ENGINE, network="loopback", netlink=True),
    "conversion": _ENGINE,
    # A source may be a directory anywhere, also in /tmp, with files that only their owner may read.
    # A hub's client is not ours, and may read /proc.
    "weights": Needs(
        network="any", capabilities=("CAP_DAC_OVERRIDE",), home="read-only", tmp=True, proc=True
    ),
    # Sends files that all may read to other machines.
    "share": Needs(network="any", without_calls=("@privileged", "@resources")),
    "proxy": Needs(network="any", without_calls=("@privileged", "@resources")),
    # Engines ask it over a Unix socket.
    "usage": Needs(without_calls=("@privileged", "@resources")),
    # At a gateway it asks the machines' counters.
    "pool": Needs(network="any", without_calls=("@privileged", "@resources")),
    # On the loopback alone; the packet filter leaves it two ports there.
    "web": Needs(network="loopback", without_calls=("@privileged", "@resources")),
    # Opens a port, runs certbot as another user, gives it its directory and reloads the proxy.
    # certbot's cryptography writes code as it runs.
    "certificate": Needs(
        network="any",
        netlink=True,
        capabilities=(
            "CAP_NET_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_FOWNER",
            "CAP_DAC_OVERRIDE", "CAP_KILL",
        ),
        without_calls=("@resources",),
        compiles=True,
    ),
    "firewall": Needs(
        netlink=True,
        capabilities=("CAP_NET_ADMIN",),
        without_calls=("@privileged", "@resources"),
    ),
    # Replaces files of root and of other groups, and makes systemd read them.
    "restoring": Needs(
        capabilities=("CAP_CHOWN", "CAP_FOWNER", "CAP_DAC_OVERRIDE"), without_calls=("@resources",)
    ),
    # Asks systemd, and the proxy by its root-only socket, whose map it writes; passes requests on
    # to an engine.
    "resting": Needs(
        network="loopback",
        # Reads which of the weights are in the page cache: the call is in no set.
        calls=("@system-service", "mincore"),
        capabilities=("CAP_CHOWN", "CAP_DAC_OVERRIDE"),
        without_calls=("@resources",),
        proc=True,
        processes=True,
    ),
    # Describes the machine as the probe does, compiles a program that reads memory and asks the
    # proxy; the engine's own code runs in a unit of the kind `engine`.
    "measuring": Needs(
        network="loopback", netlink=True, proc=True, processes=True, compiles=True
    ),
    # Reads all that was applied: files of any owner, environments and sockets of other users'
    # processes, the packet filter, the proxy's socket. It writes only its result.
    "looking": Needs(
        netlink=True,
        capabilities=("CAP_DAC_OVERRIDE", "CAP_NET_ADMIN", "CAP_SYS_PTRACE"),
        without_calls=("@resources",),
        proc=True,
        processes=True,
    ),
    # Writes kimi-prov's metrics of the machine: reads files of any owner, asks systemd and the
    # GPUs, lists connections.
    "metrics": Needs(
        netlink=True,
        capabilities=("CAP_DAC_READ_SEARCH",),
        calls=("@system-service", "adjtimex", "clock_adjtime"),
        without_calls=("@resources",),
        proc=True,
        processes=True,
        clock=True,
    ),
    # The distribution's node exporter, behind the proxy: it reads what the kernel shows to all
    # users.
    "exporter": Needs(
        network="loopback",
        netlink=True,
        calls=("@system-service", "adjtimex", "clock_adjtime"),
        without_calls=("@privileged", "@resources"),
        proc=True,
        processes=True,
        clock=True,
    ),
    # Prometheus and Alertmanager: they send requests to other machines, and receive them.
    "monitor": Needs(network="any", netlink=True, without_calls=("@privileged", "@resources")),
    # keepalived: it speaks VRRP, adds the address to an interface, and asks the proxy as its user.
    "address": Needs(
        network="any",
        netlink=True,
        packets=True,
        capabilities=("CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SETUID", "CAP_SETGID", "CAP_KILL"),
        without_calls=("@resources",),
    ),
    # Asks engines and the proxy on loopback, and reads the stacks of other users' processes without
    # stopping them. It restarts units through systemd.
    "watching": Needs(
        network="loopback",
        capabilities=("CAP_DAC_OVERRIDE", "CAP_SYS_PTRACE"),
        without_calls=("@resources",),
        proc=True,
        processes=True,
    ),
    # A model wrote it: it computes, reads the system and writes to its standard output. Without
    # @network-io it makes no socket of any family (systemd-run cannot say "none"); io_uring, of
    # @aio, makes sockets and files past the filter of calls.
    "code": Needs(
        without_calls=("@privileged", "@resources", "@network-io", "@keyring", "@aio"),
        own_users=True,
    ),
}  # fmt: skip


def _choose_settings(needs: Needs) -> list[tuple[tuple[str, str], bool]]:
    return [
        (("PrivateTmp", "yes"), not needs.tmp),
        (("PrivateUsers", "yes"), needs.own_users),
        (("ProcSubset", "pid"), not needs.proc),
        (("ProtectClock", "yes"), not needs.clock),
        (("ProtectProc", "invisible"), not needs.processes),
        (("MemoryDenyWriteExecute", "yes"), not needs.compiles),
    ]


def build_settings(
    kind: str,
    *,
    gpus: bool = False,
    write: Sequence[str] = (),
    capabilities: Sequence[str] = (),
    peers: Sequence[str] = (),
    rdma: bool = False,
) -> Settings:
    """Return the settings of [Service] for a kind of unit, sorted by name.

    `write`: directories that it may write to. `capabilities`: beside those of its kind, and given
    to a user who has none. `peers`: addresses that it may reach, and be reached from, besides the
    loopback. `rdma`: with the devices that bypass the kernel's network.
    """
    needs = KINDS[kind]
    bounds = " ".join([*needs.capabilities, *capabilities])
    families = [*_FAMILIES[needs.network], *(["AF_NETLINK"] if needs.netlink else [])]
    families += ["AF_PACKET"] if needs.packets else []
    found: Settings = [
        ("AmbientCapabilities", " ".join(capabilities)),
        ("CapabilityBoundingSet", bounds),
        ("LockPersonality", "yes"),
        ("NoNewPrivileges", "yes"),
        ("ProtectControlGroups", "yes"),
        ("ProtectHome", needs.home),
        ("ProtectHostname", "yes"),
        ("ProtectKernelLogs", "yes"),
        ("ProtectKernelModules", "yes"),
        ("ProtectKernelTunables", "yes"),
        ("ProtectSystem", "strict"),
        ("RemoveIPC", "yes"),
        ("RestrictAddressFamilies", " ".join(families)),
        ("RestrictNamespaces", "yes"),
        ("RestrictRealtime", "yes"),
        ("RestrictSUIDSGID", "yes"),
        ("SystemCallArchitectures", "native"),
        ("SystemCallErrorNumber", "EPERM"),
        ("SystemCallFilter", " ".join(needs.calls)),
    ]
    if needs.without_calls:
        found.append(("SystemCallFilter", "~" + " ".join(needs.without_calls)))
    if needs.network != "any":
        found.append(("IPAddressDeny", "any"))
    if needs.network == "loopback":
        # One a line: systemd-run takes no list with this name in it.
        found += [("IPAddressAllow", name) for name in ("localhost", *peers)]
    if gpus:
        found.append(("DevicePolicy", "closed"))
        names = [*GPU_DEVICES, *([RDMA_DEVICE] if rdma else [])]
        found += [("DeviceAllow", f"char-{name} rwm") for name in names]
    else:
        found.append(("PrivateDevices", "yes"))
    found += [setting for setting, wanted in _choose_settings(needs) if wanted]
    if write:
        found.append(("ReadWritePaths", " ".join(write)))
    return sorted(found, key=lambda pair: pair[0])


def format_unit_lines(
    kind: str,
    *,
    gpus: bool = False,
    write: Sequence[str] = (),
    capabilities: Sequence[str] = (),
    peers: Sequence[str] = (),
    rdma: bool = False,
) -> str:
    """Return the settings as lines of a unit file."""
    found = build_settings(
        kind, gpus=gpus, write=write, capabilities=capabilities, peers=peers, rdma=rdma
    )
    return "\n".join(f"{name}={value}" for name, value in found)


def build_run_options(kind: str, *, gpus: bool = False, write: Sequence[str] = ()) -> list[str]:
    """Return the settings as options of systemd-run."""
    return [
        f"--property={name}={value}" for name, value in build_settings(kind, gpus=gpus, write=write)
    ]


def build_sandbox_options(
    *, gpus: bool, peers: Sequence[str] = (), rdma: bool = False, binds: bool = True
) -> list[str]:
    """Return the options of systemd-run for code of an engine: its user, and its unit's protection.

    It may write to the cache, and has a /tmp of its own. `peers`: addresses that it reaches beside
    the loopback. `rdma`: whether it has the RDMA devices. `binds`: whether it may choose the CPUs
    that it runs on.
    """
    devices = [f"Wants={GPU_MODULE}", f"After={GPU_MODULE}", f"ExecStartPre={GPU_FILES}"]
    given = [
        f"User={paths.USER}",
        f"Group={paths.USER}",
        # Python searches modules there: not a directory that the service can write to.
        f"WorkingDirectory={paths.HOME}",
        f"Environment={LOOPBACK}",
        "UMask=0077",
        "LimitMEMLOCK=infinity",
        "LimitNOFILE=65536",
        "OOMPolicy=stop",
        "TimeoutStopSec=10",
        *(devices if gpus else []),
        *([f"DeviceAllow=char-{RDMA_DEVICE} rwm"] if rdma else []),
        # Each in an option of its own: systemd-run takes no list that has a name in it.
        *(f"IPAddressAllow={peer}" for peer in peers),
    ]
    return [
        *(f"--property={setting}" for setting in given),
        *build_run_options("engine", gpus=gpus, write=[paths.CACHE]),
        *([] if binds else ["--property=SystemCallFilter=~sched_setaffinity"]),
    ]


# What code of a model must not even read, and where it could leave something behind.
_CLOSED = (
    *(paths.ETC, paths.ROOT, paths.HOME, paths.RUN, paths.GROUP_RUN),
    *("/run/kimi-proxy", "/run/dbus", "/etc/ssh", "/etc/ssl/private"),
    # Sockets that all users may write to; /dev/log leads into the journal's directory.
    *(f"/run/systemd/{name}" for name in ("private", "notify", "journal", "userdb", "resolve")),
    *("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue"),  # noqa: S108
)


def build_code_options(limit_s: float) -> list[str]:
    """Return the options of systemd-run for code that a model wrote; it may run `limit_s`."""
    given = [
        # A user that exists only as long as the unit.
        "DynamicUser=yes",
        "PrivateNetwork=yes",
        "PrivateIPC=yes",
        "KeyringMode=private",
        "UMask=0077",
        "WorkingDirectory=/",
        "Environment=LC_ALL=C.UTF-8",
        *(f"InaccessiblePaths=-{path}" for path in _CLOSED),
        "MemoryMax=512M",
        "MemorySwapMax=0",
        "TasksMax=32",
        # For machines without the kernel's controllers, as in a container: limits on the user's
        # tasks, and on the memory of each process.
        "LimitNPROC=32",
        "LimitAS=1G",
        "CPUQuota=100%",
        "CPUWeight=1",
        "IOWeight=1",
        "LimitFSIZE=0",
        "LimitNOFILE=128",
        "LimitCORE=0",
        "OOMPolicy=stop",
        f"RuntimeMaxSec={limit_s:.0f}",
        "TimeoutStopSec=2",
    ]
    return [
        "--description=Kimi: code that the model wrote",
        *(f"--property={setting}" for setting in given),
        *build_run_options("code"),
    ]
