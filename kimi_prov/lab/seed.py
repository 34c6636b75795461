"""The files that make the common image one host: name, keys, addresses, resolver."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.lab.inventory import derive_ipv6

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.lab.inventory import Lab, LabHost

# Addresses of qemu's user network: guest, gateway (the control machine), name server.
SLIRP_GUEST = "10.0.2.15"
SLIRP_GATEWAY = "10.0.2.2"
SLIRP_DNS = "10.0.2.3"


@dataclass(frozen=True)
class SeedFile:
    """One file of the seed, owned by root."""

    path: str
    content: bytes
    mode: int = 0o644


def make_machine_id(lab: Lab, host: LabHost) -> str:
    """Return the host's /etc/machine-id: the same at every `up`."""
    return hashlib.sha256(f"{lab.ident}/{host.name}".encode()).hexdigest()[:32]


def make_mac(lab: Lab, host: LabHost, card: int) -> str:
    """Return a locally administered MAC address for the host's network card number `card`."""
    digest = hashlib.sha256(f"{lab.ident}/{host.name}/{card}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x52, 0x54, 0x00, *digest[:3]))


def make_common_files(lab: Lab, host: LabHost, public_key: str, host_key: Path) -> list[SeedFile]:
    """Files that every kind of host gets."""
    key = public_key.encode()
    return [
        SeedFile("etc/hostname", f"{host.name}\n".encode()),
        SeedFile("etc/machine-id", f"{make_machine_id(lab, host)}\n".encode(), 0o444),
        make_hosts_file(lab),
        SeedFile("etc/ssh/ssh_host_ed25519_key", host_key.read_bytes(), 0o600),
        SeedFile("etc/ssh/ssh_host_ed25519_key.pub", host_key.with_suffix(".pub").read_bytes()),
        # One file for both accounts: a key file in a home folder would need its owner's uid.
        SeedFile("etc/ssh/lab_authorized_keys", key),
        SeedFile(
            "etc/ssh/sshd_config.d/lab.conf",
            b"AuthorizedKeysFile .ssh/authorized_keys /etc/ssh/lab_authorized_keys\n"
            b"PermitRootLogin prohibit-password\nPasswordAuthentication no\nUseDNS no\n",
        ),
    ]


def make_hosts_file(lab: Lab) -> SeedFile:
    """/etc/hosts with the names of all the lab's hosts."""
    names = "".join(
        f"{h.address}\t{h.name}\n{derive_ipv6(h.address)}\t{h.name}\n" for h in lab.hosts
    )
    return SeedFile("etc/hosts", f"127.0.0.1\tlocalhost\n::1\tlocalhost\n{names}".encode())


def make_resolver_file(servers: list[str]) -> SeedFile:
    """Return the host's /etc/resolv.conf."""
    return SeedFile("etc/resolv.conf", "".join(f"nameserver {s}\n" for s in servers).encode())


def make_qemu_network_files(lab: Lab, host: LabHost) -> list[SeedFile]:
    """Network of a guest: the user network on the first card, the other guests on the second."""
    first = (
        f"[Match]\nMACAddress={make_mac(lab, host, 0)}\n[Network]\nAddress={SLIRP_GUEST}/24\n"
        f"Gateway={SLIRP_GATEWAY}\nIPv6AcceptRA=no\n"
    )
    second = (
        f"[Match]\nMACAddress={make_mac(lab, host, 1)}\n[Network]\n"
        f"Address={host.address}/{lab.network.prefixlen}\nAddress={derive_ipv6(host.address)}/64\n"
        "IPv6AcceptRA=no\n"
    )
    return [
        SeedFile("etc/systemd/network/10-uplink.network", first.encode()),
        SeedFile("etc/systemd/network/20-lab.network", second.encode()),
        make_resolver_file([SLIRP_DNS]),
    ]


def write_tar(files: list[SeedFile], target: Path) -> None:
    """Write the files as a tar, owned by root, the folders above them included."""
    folders = {
        "/".join(parts[:depth])
        for file in files
        for parts in [file.path.split("/")]
        for depth in range(1, len(parts))
    }
    fresh = target.with_suffix(".new")
    fresh.touch(mode=0o600)
    with tarfile.open(fresh, "w") as tar:
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for file in files:
            entry = tarfile.TarInfo(file.path)
            entry.size, entry.mode = len(file.content), file.mode
            tar.addfile(entry, io.BytesIO(file.content))
    fresh.rename(target)
