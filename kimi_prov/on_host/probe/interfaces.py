"""Network interfaces: their speeds, and their addresses."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import TYPE_CHECKING

from kimi_prov.on_host.probe import devices

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.network import InterfaceFacts
    from kimi_prov.on_host.system.machine import Machine

_NET = "/sys/class/net"
# Names go into environments and units: interfaces with other characters are not used for engines.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,15}")
_SHARED = ("link", "host", "nowhere")
# Levels of interfaces upon interfaces: a VLAN on a bond on two cards.
_MAX_LAYERS = 4
_GATEWAY = 0x2


def list_interfaces(machine: Machine) -> list[InterfaceFacts]:
    """Return the interfaces that have a device or an address, without the loopback.

    `speed_bits_per_s` is None where it is unknown or a constant: a virtual interface reports a
    speed without a card behind it (veth always 10 Gbit/s).
    """
    addresses = _list_addresses(machine)
    found: list[InterfaceFacts] = []
    for path in machine.glob(f"{_NET}/*"):
        name = path.rsplit("/", 1)[1]
        own = addresses.get(name, [])
        if name == "lo" or not _NAME.fullmatch(name):
            continue
        if not own and not machine.exists(f"{path}/device"):
            continue
        speed = devices.read_link_speed(machine, name)
        found.append(
            {
                "name": name,
                "state": machine.read(f"{path}/operstate") or None,
                "speed_bits_per_s": speed if _is_on_device(machine, name) else None,
                "mtu": machine.read_int(f"{path}/mtu"),
                "addresses": own,
                "numa_node": machine.node(f"{path}/device/numa_node"),
                "driver": _find_driver(machine, path),
            }
        )
    return found


def _find_driver(machine: Machine, path: str) -> str | None:
    link = f"{path}/device/driver"
    return machine.resolve(link).rsplit("/", 1)[1] if machine.exists(link) else None


def _is_on_device(machine: Machine, name: str, layers: int = _MAX_LAYERS) -> bool:
    """Return whether a card carries the interface, itself or below a bond, bridge or VLAN."""
    if machine.exists(f"{_NET}/{name}/device"):
        return True
    lower = [path.rsplit("/lower_", 1)[1] for path in machine.glob(f"{_NET}/{name}/lower_*")]
    return layers > 0 and any(_is_on_device(machine, below, layers - 1) for below in lower)


def _list_addresses(machine: Machine) -> dict[str, list[str]]:
    """Return each interface's addresses with prefix, without link-local ones."""
    listed = machine.run(["ip", "-json", "address"])
    found = _parse_ip_output(listed) if listed else None
    return _read_kernel_addresses(machine) if found is None else found


def _parse_ip_output(text: str) -> dict[str, list[str]] | None:
    try:
        return {
            row["ifname"]: [
                str(ipaddress.ip_interface(f"{entry['local']}/{entry['prefixlen']}"))
                for entry in row["addr_info"]
                if entry.get("scope") not in _SHARED
            ]
            # A version before 4.19 writes empty rows for what it leaves out.
            for row in json.loads(text)
            if row
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _read_kernel_addresses(machine: Machine) -> dict[str, list[str]]:
    """Read /proc: an IPv4 address belongs to the interface whose own network contains it.

    An address in a network of its own, a /32, is not listed there.
    """
    found: dict[str, list[str]] = {}
    networks = _list_connected_networks(machine)
    for address in list_local_ipv4(machine):
        own = [row for row in networks if ipaddress.IPv4Address(address) in row[1]]
        if own:
            name, network = max(own, key=lambda row: row[1].prefixlen)
            found.setdefault(name, []).append(f"{address}/{network.prefixlen}")
    for name, address6 in list_global_ipv6(machine):
        found.setdefault(name, []).append(str(address6))
    return found


def list_local_ipv4(machine: Machine) -> list[str]:
    """Return local addresses of the routing table, without the loopback."""
    found: list[str] = []
    address = ""
    for line in (machine.read("/proc/net/fib_trie") or "").splitlines():
        match = re.search(r"(?:\+|\|)-- (\d+\.\d+\.\d+\.\d+)", line)
        if match:
            address = match.group(1)
        elif "/32 host LOCAL" in line and not address.startswith("127.") and address not in found:
            found.append(address)
    return sorted(found, key=ipaddress.IPv4Address)


def list_global_ipv6(machine: Machine) -> list[tuple[str, ipaddress.IPv6Interface]]:
    """Return interfaces and their addresses of global scope: only these reach other machines."""
    found = []
    for line in (machine.read("/proc/net/if_inet6") or "").splitlines():
        words = line.split()
        if len(words) == 6 and words[3] == "00":
            address = (int(words[0], 16), int(words[2], 16))
            found.append((words[5], ipaddress.IPv6Interface(address)))
    return found


def _list_connected_networks(machine: Machine) -> list[tuple[str, ipaddress.IPv4Network]]:
    """Return the networks that are reached without a gateway, by their interface."""
    found = []
    for line in (machine.read("/proc/net/route") or "").splitlines()[1:]:
        words = line.split()
        if len(words) < 8 or int(words[3], 16) & _GATEWAY or words[7] == "00000000":
            continue
        where, mask = (ipaddress.IPv4Address(bytes.fromhex(words[at])[::-1]) for at in (1, 7))
        found.append((words[0], ipaddress.IPv4Network(f"{where}/{mask}", strict=False)))
    return found
