"""Addresses, listening sockets, and the active firewall front end."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING

from kimi_prov.on_host.probe import interfaces, rdma
from kimi_prov.on_host.system.machine import Machine, parse_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.facts.gpus import GpuFacts
    from kimi_prov.contract.documents.facts.network import (
        FirewallFacts,
        FirewallState,
        ListeningPort,
        NetworkFacts,
        RedirectedPort,
    )

_LISTEN = "0A"
# The form of iptables-save; a rule for an address that is not the machine's names that address.
_REDIRECT = re.compile(
    r"^-A .* --dport (?P<ports>[0-9]{1,5}(?::[0-9]{1,5})?) .*"
    r"-j (?:DNAT --to-destination|REDIRECT --to-ports) (?P<to>\S+)"
)
_TCP = re.compile(r" -p tcp ")
_DESTINATION = re.compile(r" -d ([0-9a-fA-F:.]+)(?:/(?:32|128))? ")
# A wider range is a router's, not a container's.
_MAX_PORTS = 1024
_SERVICE = re.compile(r"([^/]+\.(?:service|socket|scope))")


def describe_network(machine: Machine, gpus: Sequence[GpuFacts] = ()) -> NetworkFacts:
    """Return the machine's reachable addresses, its interfaces, and the TCP ports in use.

    `gpus`: rows with `index` and `pci`, for their path to the RDMA devices.
    """
    own6 = sorted(address.ip for _, address in interfaces.list_global_ipv6(machine))
    return {
        "addresses": interfaces.list_local_ipv4(machine) + [str(address) for address in own6],
        "interfaces": interfaces.list_interfaces(machine),
        "rdma": rdma.list_rdma(machine, gpus),
        "default_ipv6": _has_default_ipv6(machine),
        "listening": _list_listening(machine),
    }


def describe_firewall(machine: Machine, units: dict[str, dict[str, str]]) -> FirewallFacts:
    """Return the active firewall front end; `units` as `installed.read_units` returns them.

    ufw has no process, so its configuration is read; firewalld is a daemon, so its unit is.
    """
    ufw: FirewallState = "absent"
    if machine.which("ufw"):
        switch = parse_fields(machine.read("/etc/ufw/ufw.conf"), "=").get("ENABLED", "").lower()
        ufw = "active" if switch == "yes" else "inactive"
    daemon: FirewallState = "absent"
    if machine.which("firewalld") or machine.which("firewall-cmd"):
        state = units.get("firewalld.service", {}).get("ActiveState")
        daemon = "active" if state in ("active", "activating", "reloading") else "inactive"
    return {
        "nft": machine.which("nft") is not None,
        "ufw": ufw,
        "firewalld": daemon,
        "redirected": _list_redirected(machine),
    }


def _list_redirected(machine: Machine) -> list[RedirectedPort] | None:
    """Return TCP ports that iptables redirects before a program on this machine sees them.

    In this way Docker, Podman and containerd publish ports of containers, with a listening process
    or without. None where nothing can be read: without iptables, or without root.
    """
    texts = [machine.run([program]) for program in ("iptables-save", "ip6tables-save")]
    if not any(texts):
        return None
    rows: dict[tuple[int, str | None], RedirectedPort] = {}
    for line in "\n".join(text or "" for text in texts).splitlines():
        rule = _REDIRECT.search(line)
        first, _, last = (rule.group("ports") if rule else "").partition(":")
        if not rule or not _TCP.search(line) or int(last or first) - int(first) > _MAX_PORTS:
            continue
        where = _DESTINATION.search(line)
        address = where.group(1) if where else None
        for port in range(int(first), int(last or first) + 1):
            row: RedirectedPort = {"port": port, "address": address, "to": rule.group("to")}
            rows.setdefault((port, address), row)
    return sorted(rows.values(), key=lambda row: (row["port"], row["address"] or ""))


def _has_default_ipv6(machine: Machine) -> bool:
    for line in (machine.read("/proc/net/ipv6_route") or "").splitlines():
        words = line.split()
        if len(words) == 10 and set(words[0]) == {"0"} and words[1] == "00" and words[9] != "lo":
            return True
    return False


def _list_listening(machine: Machine) -> list[ListeningPort]:
    """Return each listening TCP port and address; process and unit only where we may see them."""
    sockets: dict[str, tuple[int, str]] = {}
    for name in ("tcp", "tcp6"):
        for line in (machine.read(f"/proc/net/{name}") or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTEN:
                address, _, port = words[1].partition(":")
                sockets[words[9]] = (int(port, 16), _decode(address))
    owners = _find_owners(set(sockets)) if machine.live else {}
    rows: list[ListeningPort] = []
    for inode, (number, where) in sockets.items():
        pid = owners.get(inode)
        rows.append(
            {
                "port": number,
                "address": where,
                "process": machine.read(f"/proc/{pid}/comm") if pid else None,
                "unit": find_unit(machine, pid) if pid else None,
            }
        )
    return sorted(rows, key=lambda row: (row["port"], row["address"]))


def _decode(text: str) -> str:
    """Parse an address of /proc/net/tcp*: words of four bytes in the machine's own order."""
    raw = bytes.fromhex(text)
    turned = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return str(ipaddress.ip_address(turned))


def _find_owners(inodes: set[str]) -> dict[str, str]:
    """Return, by socket inode, the process that holds it; the scan ends when all are found."""
    found: dict[str, str] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or len(found) == len(inodes):
            continue
        try:
            handles = os.listdir(f"/proc/{name}/fd")
        except OSError:
            continue
        for handle in handles:
            try:
                target = os.readlink(f"/proc/{name}/fd/{handle}")
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in inodes:
                found.setdefault(target[8:-1], name)
    return found


def find_unit(machine: Machine, pid: str) -> str | None:
    """Return the systemd unit of a process, the innermost where several are nested."""
    for line in (machine.read(f"/proc/{pid}/cgroup") or "").splitlines():
        names = _SERVICE.findall(line.split(":", 2)[-1])
        if names:
            return str(names[-1])
    return None
