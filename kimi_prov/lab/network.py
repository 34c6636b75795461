"""The lab's network: a bridge, a veth pair per host, and an nftables table that translates.

Only the bridge and the table live in the control machine's own network; each host's namespace is
held by its process and goes with it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.lab.inventory import Lab, derive_ipv6, restore_lab
from kimi_prov.lab.shell import find_tool, run_tool
from kimi_prov.lab.state import find_state_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kimi_prov.lab.inventory import LabHost
    from kimi_prov.lab.shell import Say

TABLE_PREFIX = "kimi_lab_"


class Setting(NamedTuple):
    """A kernel setting of the control machine while a lab is up: its file and its value there.

    `least`: a higher value stays. A setting without a file, or whose file cannot be written, is
    left out unless it is `needed`.
    """

    path: Path
    value: int
    least: bool
    needed: bool = True

    def differs(self) -> bool:
        """Whether the kernel has another value than the lab wants."""
        if not self.needed and not os.access(self.path, os.W_OK):
            return False
        now = self.read()
        return now < self.value if self.least else now != self.value

    def read(self) -> int:
        """Return the present value."""
        return int(self.path.read_text())


_SYS = Path("/proc/sys")
# Forward the hosts' packets; allow enough inotify instances for many systemds (each takes about ten
# of the usual 128); share cores by processes, not by sessions: an engine calls sched_yield in a
# loop, which yields only within its session, and on Linux 6.18 a starting engine of another host
# got 2 % of the core beside two of them.
KERNEL = {
    "ip_forward": Setting(_SYS / "net/ipv4/ip_forward", 1, least=True),
    "inotify_instances": Setting(_SYS / "fs/inotify/max_user_instances", 1024, least=True),
    "autogroup": Setting(_SYS / "kernel/sched_autogroup_enabled", 0, least=False, needed=False),
}


def name_bridge(lab: Lab) -> str:
    """Name of the lab's bridge (at most 15 characters, the kernel's limit)."""
    return f"kp{lab.ident}"


def name_cable(lab: Lab, host_name: str) -> str:
    """Name of the control machine's end of a host's veth pair."""
    return "kv" + hashlib.sha256(f"{lab.ident}/{host_name}".encode()).hexdigest()[:10]


def name_table(lab: Lab) -> str:
    """Name of the lab's nftables table."""
    return f"{TABLE_PREFIX}{lab.ident}"


def make_ruleset(lab: Lab, before: dict[str, int]) -> str:
    """Return the nftables script that (re)makes the lab's table.

    The kernel settings before the first lab are recorded in it as names of empty chains, where
    the last lab finds them, whichever user started it.
    """
    name, network = name_table(lab), lab.network
    mark = "".join(f"  chain {key}_was_{value} {{ }}\n" for key, value in before.items())
    return (
        f"table ip {name} {{ }}\ndelete table ip {name}\n"
        f"table ip {name} {{\n{mark}"
        "  chain postrouting {\n    type nat hook postrouting priority srcnat;\n"
        f"    ip saddr {network} ip daddr != {network} masquerade\n  }}\n}}\n"
    )


def is_up(lab: Lab) -> bool:
    """Whether the lab's bridge is on this machine."""
    return Path(f"/sys/class/net/{name_bridge(lab)}").exists()


def set_up(lab: Lab) -> None:
    """Make the bridge with the gateway's address and the table, and set the kernel."""
    name = name_bridge(lab)
    script = [
        "" if is_up(lab) else f"link add {name} type bridge",
        f"link set {name} mtu {_read_uplink_mtu()} up",
        f"addr replace {lab.gateway}/{lab.network.prefixlen} dev {name}",
        f"addr replace {derive_ipv6(lab.gateway)}/64 dev {name} nodad",
    ]
    _run_ip_batch(script)
    before = _read_settings_before()
    run_tool(
        ["nft", "-f", "-"], what="making the lab's nftables table", text=make_ruleset(lab, before)
    )
    for key in before:
        KERNEL[key].path.write_text(str(KERNEL[key].value))


def connect_host(lab: Lab, host: LabHost, pid: int) -> None:
    """Move the veth pair's end into the namespace of process `pid`; set the host's addresses."""
    name = name_cable(lab, host.name)
    mtu = _read_uplink_mtu()
    if Path(f"/sys/class/net/{name}").exists():
        _run_ip_batch([f"link del {name}"])
    _run_ip_batch(
        [
            f"link add {name} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {pid}",
            f"link set {name} master {name_bridge(lab)} up",
        ]
    )
    inside = [
        "link set lo up",
        f"addr add {host.address}/{lab.network.prefixlen} dev eth0",
        f"addr add {derive_ipv6(host.address)}/64 dev eth0 nodad",
        "link set eth0 up",
        f"route add default via {lab.gateway}",
    ]
    run_tool(
        ["nsenter", "--target", str(pid), "--net", "ip", "-batch", "-"],
        what=f"host {host.name}: setting its network",
        text="\n".join(inside),
    )


def set_link(lab: Lab, host: LabHost, *, up: bool) -> None:
    """Set the host's link up or down."""
    name = name_cable(lab, host.name)
    if not Path(f"/sys/class/net/{name}").exists():
        raise UserError(
            f"lab host {host.name} has no cable: it is not up as an nspawn host",
            fix=f"kimi-prov lab up {clean_text.quote_word(lab.inventory)}",
        )
    _run_ip_batch([f"link set {name} {'up' if up else 'down'}"])


def take_down(lab: Lab, host_names: Iterable[str]) -> None:
    """Remove veth pairs, table and bridge; after the last lab restore the kernel settings."""
    for host_name in host_names:
        drop_cable(lab, host_name)
    if is_up(lab):
        _run_ip_batch([f"link del {name_bridge(lab)}"])
    if find_tool("nft") is None:
        return
    present = _list_tables()
    if name_table(lab) not in present:
        return
    before = _read_recorded_settings({name_table(lab): present[name_table(lab)]})
    run_tool(
        ["nft", "delete", "table", "ip", name_table(lab)], what="removing the lab's nftables table"
    )
    if len(present) == 1:
        for key, value in before.items():
            KERNEL[key].path.write_text(str(value))


def drop_cable(lab: Lab, host_name: str) -> None:
    """Remove a host's veth pair that the kernel kept after the host's end of it is gone."""
    name = name_cable(lab, host_name)
    if Path(f"/sys/class/net/{name}").exists():
        run_tool(["ip", "link", "del", name], what="removing a cable", check=False)


def _list_tables() -> dict[str, set[str]]:
    """Return the labs' nftables tables, each with the names of its chains."""
    done = run_tool(["nft", "-j", "list", "ruleset"], what="reading nftables", check=False)
    if done.returncode != 0:
        return {}
    tables: dict[str, set[str]] = {}
    for entry in json.loads(done.stdout).get("nftables", []):
        if "table" in entry and entry["table"]["name"].startswith(TABLE_PREFIX):
            tables.setdefault(entry["table"]["name"], set())
        if "chain" in entry and entry["chain"]["table"].startswith(TABLE_PREFIX):
            tables.setdefault(entry["chain"]["table"], set()).add(entry["chain"]["name"])
    return tables


def _read_recorded_settings(tables: dict[str, set[str]]) -> dict[str, int]:
    """Return the kernel settings before the first lab, which names of the tables' chains record."""
    names = "|".join(KERNEL)
    matches = (
        re.fullmatch(rf"({names})_was_(\d+)", c) for chains in tables.values() for c in chains
    )
    return {match[1]: int(match[2]) for match in matches if match}


def _read_settings_before() -> dict[str, int]:
    """Return the former values of the kernel settings that a lab has changed or will change."""
    recorded = _read_recorded_settings(_list_tables())
    changed = {key: row.read() for key, row in KERNEL.items() if row.differs()}
    return changed | recorded


def reserve_network(lab: Lab, runs: Callable[[Lab], bool], report: Say) -> None:
    """Reserve the lab's network; remove the network of a lab without processes that has it.

    `runs` says whether a lab has processes. A lab without any is off or was killed: its next `up`
    sets up its network again. Raises UserError (exit 2) where another user has the network.
    """
    done = run_tool(
        ["ip", "-j", "-4", "addr", "show"], what="reading the addresses of this machine"
    )
    for link in json.loads(done.stdout):
        for address in link.get("addr_info", []):
            taken = f"{address['local']}/{address['prefixlen']}"
            if link["ifname"] == name_bridge(lab) or not lab.network.overlaps(
                _parse_network(taken)
            ):
                continue
            holder = _find_lab(link["ifname"])
            if holder is None or runs(holder):
                raise _make_conflict_error(lab, link["ifname"], taken, holder)
            report(f"{link['ifname']}: removing the network of a lab that does not run")
            take_down(holder, ())


def _make_conflict_error(lab: Lab, link: str, address: str, holder: Lab | None) -> UserError:
    down = (
        f"kimi-prov lab down {clean_text.quote_word(holder.inventory)}" if holder else "remove it"
    )
    return UserError(
        f"{lab.inventory}: lab_network {lab.network} is taken: {link} of this machine has "
        f"{address}",
        fix=f"{down}, or choose another lab_network and lab_address",
        exit_code=ExitCode.BAD_INPUT,
    )


def _find_lab(link: str) -> Lab | None:
    """Return the known lab whose bridge has this name; None for other links."""
    match = re.fullmatch(r"kp([0-9a-f]{8})", link)
    if match is None:
        return None
    ident = match[1]
    for record in find_state_home().glob(f"*-{ident}/lab.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return restore_lab(record.read_text())
    return Lab(Path("INVENTORY"), link, ident, ipaddress.IPv4Network("0.0.0.0/32"))


def _parse_network(text: str) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(text, strict=False)


def _read_uplink_mtu() -> int:
    """Return the MTU of the default route's link, so that hosts send no larger packets."""
    route = run_tool(["ip", "-4", "route", "show", "default"], what="reading routes", check=False)
    match = re.search(r"\bdev (\S+)", route.stdout)
    path = Path(f"/sys/class/net/{match[1]}/mtu") if match else None
    return int(path.read_text()) if path and path.exists() else 1500


def _run_ip_batch(lines: list[str]) -> None:
    text = "\n".join(line for line in lines if line)
    run_tool(["ip", "-batch", "-"], what="setting the lab's network", text=text)
