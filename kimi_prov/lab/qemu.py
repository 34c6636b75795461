"""qemu hosts: a kernel of their own, two sockets and two NUMA nodes; needs no privileges."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from kimi_prov.errors import UserError
from kimi_prov.lab.seed import make_mac, make_machine_id
from kimi_prov.lab.shell import find_tool, make_tool_environment, run_tool
from kimi_prov.lab.state import HostState, kill_process, launch_host

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.lab.inventory import Lab, LabHost

QEMU = "qemu-system-x86_64"
INSTALL = "apt-get install qemu-system-x86 qemu-utils mmdebstrap e2fsprogs fakeroot"
TOOLS = (QEMU, "qemu-img", "mmdebstrap", "mke2fs")
# The network between the guests of one lab: frames as multicast on the loopback, unprivileged.
_WIRE_GROUP = "230.93.0.1"
_KVM_TIMEOUT_S = 5.0


def make_address(host: LabHost) -> str:
    """Return the control machine's loopback address at which the guest answers.

    The whole of 127/8 is loopback, so each guest has its own address and keeps its port numbers.
    """
    first, rest = host.address.split(".", 1)
    return host.address if first == "127" else f"127.{rest}"


def choose_guests_port(lab: Lab) -> int:
    """UDP port of the network between the lab's guests."""
    return 20000 + int(lab.ident, 16) % 20000


def make_command(
    lab: Lab, host: LabHost, image: Path, state: HostState, port: int, *, kvm: bool
) -> list[str]:
    """Build the command line of the guest: 4 CPUs on two sockets, memory on two NUMA nodes.

    Its sshd is forwarded to `port` of its address here.
    """
    half = host.memory_mb // 2
    at = make_address(host)
    forwards = [(port, 22), *((forward, forward) for forward in host.forward_ports)]
    user_network = "user,id=up,ipv6=off" + "".join(
        f",hostfwd=tcp:{at}:{outside}-:{inside}" for outside, inside in forwards
    )
    kernel_arguments = (
        "root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet "
        f"systemd.hostname={host.name} systemd.machine_id={make_machine_id(lab, host)} "
        f"{host.kernel_arguments}"
    )
    return [
        QEMU,
        *("-name", f"{lab.ident}-{host.name}", "-nodefaults", "-no-user-config"),
        *("-machine", "q35", "-display", "none", "-serial", "stdio", "-monitor", "none"),
        *(
            ("-accel", "kvm", "-cpu", "host")
            if kvm
            else ("-accel", "tcg,thread=multi", "-cpu", "max")
        ),
        *("-m", str(half * 2), "-smp", "4,sockets=2,cores=2,threads=1"),
        *("-object", f"memory-backend-ram,id=ram0,size={half}M"),
        *("-object", f"memory-backend-ram,id=ram1,size={half}M"),
        *("-numa", "node,nodeid=0,cpus=0-1,memdev=ram0"),
        *("-numa", "node,nodeid=1,cpus=2-3,memdev=ram1"),
        *("-numa", "dist,src=0,dst=1,val=21"),
        *("-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd.img")),
        *("-append", kernel_arguments),
        *("-drive", f"file={state.folder / 'disk.qcow2'},if=virtio,format=qcow2,discard=unmap"),
        *("-drive", f"file={state.seed},if=virtio,format=raw,readonly=on"),
        *("-netdev", user_network),
        *("-device", f"virtio-net-pci,netdev=up,mac={make_mac(lab, host, 0)}"),
        *(
            "-netdev",
            f"socket,id=lab,mcast={_WIRE_GROUP}:{choose_guests_port(lab)},localaddr=127.0.0.1",
        ),
        *("-device", f"virtio-net-pci,netdev=lab,mac={make_mac(lab, host, 1)}"),
        *("-device", "virtio-rng-pci"),
    ]


def find_obstacle() -> str | None:
    """Return why qemu hosts cannot run on this machine; None when they can."""
    tools = TOOLS if os.geteuid() == 0 else (*TOOLS, "fakeroot")
    missing = [tool for tool in tools if find_tool(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return None


def has_working_kvm(image: Path) -> bool:
    """Boot the image's kernel under KVM and wait for its output; /dev/kvm alone proves nothing.

    Takes about a second where it works and five where the guest hangs.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    guest = subprocess.Popen(
        [
            *(
                QEMU,
                "-accel",
                "kvm",
                "-cpu",
                "host",
                "-m",
                "256",
                "-nodefaults",
                "-display",
                "none",
            ),
            *("-serial", "stdio", "-no-reboot", "-kernel", str(image / "vmlinuz")),
            *("-append", "console=ttyS0 panic=-1 root=/dev/none"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=make_tool_environment(),
    )
    stdout = guest.stdout
    if stdout is None:
        return False
    os.set_blocking(stdout.fileno(), False)
    said = b""
    deadline = time.monotonic() + _KVM_TIMEOUT_S
    try:
        while time.monotonic() < deadline and guest.poll() is None and b"panic" not in said:
            said += stdout.read() or b""
            time.sleep(0.05)
    finally:
        guest.kill()
        guest.wait()
        stdout.close()
    return b"Kernel panic" in said


def start_host(
    lab: Lab, host: LabHost, image: Path, state: HostState, port: int, *, kvm: bool
) -> None:
    """Boot the guest from a disk of its own that holds only what differs from the image."""
    disk = state.folder / "disk.qcow2"
    if not disk.exists():
        fresh = state.folder / "disk.new"
        run_tool(
            [
                *("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw"),
                *("-b", image / "disk.ext4", fresh),
            ],
            what=f"host {host.name}: making its disk",
        )
        fresh.rename(disk)
    for opened in (port, *host.forward_ports):
        _refuse_taken(lab, host, opened)
    launch_host(make_command(lab, host, image, state, port, kvm=kvm), state, lab.ident)


def stop_host(state: HostState) -> None:
    """Kill the guest's process."""
    kill_process(state)


def _refuse_taken(lab: Lab, host: LabHost, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((make_address(host), port))
        except OSError as error:
            key = "lab_forward_ports" if port in host.forward_ports else "lab_ssh_port"
            raise UserError(
                f"{lab.inventory}: host {host.name}: {key}: {make_address(host)}:{port} cannot be "
                f"opened on this machine: {error.strerror}",
                fix=f"choose another port or another lab_address for host {host.name}",
            ) from error
