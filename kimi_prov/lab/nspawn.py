"""nspawn hosts: a real systemd with its own network, process tree and mounts, at native speed.

One process tree holds everything of a host (namespaces, mounts, its end of the veth pair), which is
gone when the tree ends in any way. Only the overlay's upper layer stays on the disk: the host's own
state, which survives a reboot and a poweroff.
"""

from __future__ import annotations

import os
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.lab import gpus, network
from kimi_prov.lab.shell import find_tool, run_tool
from kimi_prov.lab.state import HostState, LabState, kill_process, launch_host, remove_tree

if TYPE_CHECKING:
    from kimi_prov.lab.inventory import Lab, LabHost

TOOLS = ("systemd-nspawn", "ip", "nft", "unshare", "nsenter", "mmdebstrap")

# First stage, in new mount, network and process namespaces. systemd in the host needs one unified
# cgroup tree, and a group of its own: two hosts in one group would both manage its subgroups. If
# the control machine has that tree, the kernel refuses to mount it at the same path again.
# $1 cgroup, $2 image, $3 host's folder, $4 host's name
_STAGE_ONE = r"""
set -e
grep -q ' /sys/fs/cgroup cgroup2 ' /proc/self/mounts || mount -t cgroup2 none /sys/fs/cgroup
mkdir -p "/sys/fs/cgroup/$1"
echo 0 > "/sys/fs/cgroup/$1/cgroup.procs"
exec unshare --cgroup --mount sh -c "$0" sh "$@"
"""

# Second stage: the overlay, the network, then the machine; exit status 133 requests a reboot.
# /sys still shows the control machine's interfaces, which may have an eth0 or none.
# From $5 on: further options of systemd-nspawn.
_STAGE_TWO = r"""
set -e
umount /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p "$3/upper" "$3/work" "$3/root"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$3/upper,workdir=$3/work" "$3/root"
until grep -q '^ *eth0:' /proc/self/net/dev; do sleep 0.02; done
root=$3/root machine=$4
shift 4
while :; do
  status=0
  SYSTEMD_NSPAWN_API_VFS_WRITABLE=network SYSTEMD_NSPAWN_TMPFS_TMP=0 \
    systemd-nspawn --quiet --boot --register=no --keep-unit \
    --directory="$root" --machine="$machine" --network-namespace-path=/proc/self/ns/net \
    --capability=CAP_NET_ADMIN,CAP_NET_RAW --resolv-conf=off --timezone=off --link-journal=no \
    "$@" || status=$?
  [ "$status" = 133 ] || exit "$status"
done
"""


def make_cgroup_path(lab: Lab, host_name: str | None = None) -> str:
    """Return the host's control group, or the lab's, below the root of the unified tree."""
    return f"kimi-lab-{lab.ident}" + (f"/{host_name}" if host_name else "")


def make_command(
    lab: Lab, host: LabHost, image: Path, state: HostState, gpu_access: gpus.GpuAccess | None = None
) -> list[str]:
    """Build the command line that becomes the host; `gpu_access`: GPUs of this machine."""
    return [
        *("unshare", "--mount", "--net", "--pid", "--ipc", "--uts"),
        *("--fork", "--kill-child=SIGKILL", "--mount-proc"),
        "sh",
        "-c",
        _STAGE_ONE,
        _STAGE_TWO,
        make_cgroup_path(lab, host.name),
        str(image / "root"),
        str(state.folder),
        host.name,
        *(gpu_access.options if gpu_access else []),
        *(f"--bind={LabState.from_lab(lab).shared(path)}:{path}" for path in host.shared),
    ]


def find_obstacle() -> str | None:
    """Return why nspawn hosts cannot run on this machine; None when they can."""
    if os.geteuid() != 0:
        return "nspawn hosts need root, and this is an ordinary user"
    missing = [tool for tool in TOOLS if find_tool(tool) is None]
    if missing:
        return (
            f"not installed: {', '.join(missing)} "
            "(apt-get install systemd-container mmdebstrap iproute2 nftables)"
        )
    probe = (
        "mount -t tmpfs none /mnt && mkdir /mnt/l /mnt/u /mnt/w /mnt/r && "
        "mount -t overlay overlay -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w /mnt/r && "
        "mount -t cgroup2 none /mnt/l && ip link add kpprobe type bridge && nft list tables"
    )
    tried = run_tool(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c", probe],
        what="probing for nspawn",
        check=False,
    )
    if tried.returncode != 0:
        return f"this machine does not allow it: {tried.stderr.strip() or 'no reason given'}"
    return None


def start_host(lab: Lab, host: LabHost, image: Path, state: HostState) -> None:
    """Boot the host; returns when its process runs and its network is set up.

    The seed is written into the upper layer only once: later changes on the host stay.
    """
    upper = state.folder / "upper"
    if not upper.exists():
        fresh = state.folder / "upper.new"
        remove_tree(fresh)
        fresh.mkdir(parents=True)
        with tarfile.open(state.seed) as tar:
            # Debian 12's Python 3.11.2 has no argument `filter`; newer ones require it.
            tar.extraction_filter = lambda member, _: member
            tar.extractall(fresh)  # noqa: S202 - written by this program
        fresh.rename(upper)
    gpu_access = gpus.find_gpus(cards=host.cards) if host.gpus else None
    if gpu_access:
        gpus.add_library_paths(upper, gpu_access)
    for path in host.shared:
        LabState.from_lab(lab).shared(path).mkdir(parents=True, exist_ok=True)
    launch_host(make_command(lab, host, image, state, gpu_access), state, lab.ident)
    own = _find_namespace("self")
    deadline = time.monotonic() + 20
    while True:
        pid = state.running_pid()
        if pid is not None and _find_namespace(pid) not in {own, None}:
            network.connect_host(lab, host, pid)
            state.wired_file.write_text(str(pid))
            return
        if time.monotonic() > deadline:
            raise UserError(
                f"lab host {host.name} did not start: {state.console_tail()}",
                fix=f"read {state.console}",
                exit_code=ExitCode.FAILED,
            )
        time.sleep(0.02)


def stop_host(lab: Lab, host_name: str, state: HostState) -> None:
    """Kill every process of the host, also those left by a killed first process."""
    kill_process(state)
    network.drop_cable(lab, host_name)


def end_leftovers(lab: Lab) -> None:
    """End all processes in the lab's control groups, and remove the groups.

    This also ends a start that was interrupted before its record was written.
    """
    script = r"""
grep -q ' /sys/fs/cgroup cgroup2 ' /proc/self/mounts \
  || mount -t cgroup2 none /sys/fs/cgroup || exit 0
top="/sys/fs/cgroup/$1"
[ -d "$top" ] || exit 0
tries=0
# A killed process must run once more to end, which takes many seconds on a busy machine.
while [ -d "$top" ] && [ $tries -lt 1200 ]; do
  echo 1 > "$top/cgroup.kill" 2>/dev/null \
    || find "$top" -name cgroup.procs -exec cat {} + | xargs -r kill -KILL 2>/dev/null
  find "$top" -depth -type d -exec rmdir {} \; 2>/dev/null
  tries=$((tries+1)); [ -d "$top" ] && sleep 0.05
done
[ ! -d "$top" ] || exit 3
"""
    swept = run_tool(
        ["unshare", "--mount", "sh", "-c", script, "sh", make_cgroup_path(lab)],
        what=f"ending what still runs in the control group {make_cgroup_path(lab)}",
        check=False,
    )
    # Any other exit status means that this machine allows no mount, so no host can run as nspawn.
    if swept.returncode == 3:
        raise UserError(
            f"processes in the control group {make_cgroup_path(lab)} do not end",
            fix="run `kimi-prov lab down` again",
            exit_code=ExitCode.FAILED,
        )


def _find_namespace(process: int | str) -> str | None:
    try:
        return str(Path(f"/proc/{process}/ns/net").readlink())
    except OSError:
        return None
