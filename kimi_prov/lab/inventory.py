"""The lab as the inventory declares it: hosts, their addresses and files."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from kimi_prov import inventory_files
from kimi_prov.errors import UserError
from kimi_prov.lab.shell import make_tool_environment
from kimi_prov.packaging import resources

Kind = Literal["nspawn", "qemu"]
KINDS: tuple[Kind, ...] = ("nspawn", "qemu")
# Images that a lab host may have, each with its suite for mmdebstrap.
SUITES = {"debian-12": "bookworm", "debian-13": "trixie"}
SSH_PORT = {"nspawn": 22, "qemu": 2222}
_PACKAGE = r"[a-z0-9][a-z0-9+.-]+"
# No colon, backslash or `..`: systemd-nspawn interprets them in a path.
_SHARED = r"(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+"


@dataclass(frozen=True)
class LabFile:
    """A file or folder of the control machine (or `model:NAME`), copied to `dest` on the host."""

    src: str
    dest: str


@dataclass(frozen=True)
class LabHost:
    """One stand-in machine as the inventory declares it."""

    name: str
    kind: Kind
    image: str
    address: str
    port: int
    memory_mb: int
    forward_ports: tuple[int, ...] = ()
    kernel_arguments: str = ""
    files: tuple[LabFile, ...] = ()
    gpus: bool = False
    # Numbers of the GPUs that the host gets; all GPUs where empty.
    cards: tuple[int, ...] = ()
    packages: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lab:
    """All stand-in machines of one inventory; `ident` is unique for the inventory's path."""

    inventory: Path
    name: str
    ident: str
    network: ipaddress.IPv4Network
    hosts: tuple[LabHost, ...] = field(default=())

    @property
    def gateway(self) -> str:
        """The control machine's own address in the lab's network."""
        return str(next(self.network.hosts()))

    def host(self, name: str) -> LabHost:
        """Return the host called `name`; UserError lists the names there are."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise UserError(
            f"{self.inventory}: no lab host is called {name!r}",
            fix=f"choose one of: {', '.join(h.name for h in self.hosts)}",
        )


def derive_ipv6(address: str) -> str:
    """Return the unique local IPv6 address (fd6b:6d00::/32) that stands for the IPv4 `address`."""
    a, b, c, d = ipaddress.IPv4Address(address).packed
    return str(ipaddress.IPv6Address(f"fd6b:6d00:{a:x}{b:02x}:{c:x}::{d:x}"))


def identify_lab(inventory: Path) -> tuple[str, str]:
    """Return the inventory's name and eight hex digits of its path; the same at every call."""
    resolved = inventory.resolve()
    ident = hashlib.sha256(str(resolved).encode()).hexdigest()[:8]
    stem = re.sub(r"[^a-z0-9-]+", "-", resolved.name.lower()).strip("-") or "lab"
    return f"{stem}-{ident}", ident


def check_place(inventory: Path) -> Path:
    """Return the inventory's resolved folder; UserError where the lab could not write beside it."""
    if not inventory.exists():
        raise UserError(
            f"{inventory}: there is no such inventory", fix="kimi-prov init DIR --profile lab"
        )
    if not inventory.is_dir():
        raise UserError(
            f"{inventory}: the lab needs an inventory folder, because it writes "
            "group_vars/all/lab.yml beside the hosts file",
            fix=f"mkdir DIR && cp {inventory} DIR/hosts.yml, then name DIR",
        )
    return inventory.resolve()


def load_lab(inventory: Path) -> Lab:
    """Read the inventory with Ansible's own loader and return its lab.

    Raises UserError (exit 2) naming the host and variable that is wrong.
    """
    folder = check_place(inventory)
    return parse_lab(folder, _read_ansible_inventory(folder))


def dump_lab(lab: Lab) -> str:
    """Write the lab as JSON, for `restore`."""
    return json.dumps(asdict(lab), default=str, indent=1)


def restore_lab(text: str) -> Lab:
    """Read the text of `dump_lab`."""
    document = json.loads(text)
    hosts = tuple(
        LabHost(
            **{
                **host,
                "forward_ports": tuple(host["forward_ports"]),
                "files": tuple(LabFile(**file) for file in host["files"]),
                # The record of a lab of an earlier version has none of these keys.
                "cards": tuple(host.get("cards", ())),
                "packages": tuple(host.get("packages", ())),
                "shared": tuple(host.get("shared", ())),
            }
        )
        for host in document["hosts"]
    )
    network = ipaddress.IPv4Network(document["network"])
    return Lab(Path(document["inventory"]), document["name"], document["ident"], network, hosts)


def _read_ansible_inventory(folder: Path) -> dict[str, Any]:
    beside = Path(sys.executable).with_name("ansible-inventory")
    config = resources.find_ansible_config()
    sources = inventory_files.list_sources(folder, config)
    if not sources:
        raise UserError(
            f"{folder}: no file of hosts lies right in this folder", fix=f"write {folder}/hosts.yml"
        )
    named = [word for source in sources for word in ("-i", str(source))]
    command = [str(beside) if beside.exists() else "ansible-inventory", *named, "--list"]
    environment = {
        **make_tool_environment(),
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        **inventory_files.choose_readers(folder, config, os.environ, own=config),
    }
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, timeout=120
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise UserError(
            f"{folder}: Ansible cannot read this inventory: " + " ".join(lines[-6:]),
            fix=shlex.join(["ansible-inventory", *named, "--list"]),
        )
    return cast("dict[str, Any]", json.loads(done.stdout))


def parse_lab(folder: Path, document: dict[str, Any]) -> Lab:
    """Build the lab from the output of `ansible-inventory --list` for `folder`."""
    name, ident = identify_lab(folder)
    hostvars: dict[str, dict[str, Any]] = document.get("_meta", {}).get("hostvars", {})
    declared = {h: v for h, v in sorted(hostvars.items()) if "lab_kind" in v}
    if not declared:
        raise UserError(
            f"{folder}: no host of this inventory has the variable lab_kind",
            fix="set lab_kind: nspawn (or qemu) on the hosts that the lab is to start",
        )
    hosts = tuple(_parse_host(folder, h, v) for h, v in declared.items())
    network = _choose_network(folder, declared, hosts)
    seen: dict[str, str] = {}
    for host in hosts:
        if host.address in seen:
            raise UserError(
                f"{folder}: hosts {seen[host.address]} and {host.name} both have lab_address "
                f"{host.address}",
                fix="give each host an address of its own",
            )
        seen[host.address] = host.name
    return Lab(folder, name, ident, network, hosts)


def _find_misfit(variables: dict[str, Any], kind: str) -> tuple[str, str] | None:
    """Return the first list that is not as it has to be, and what was expected."""
    forwards = variables.get("lab_forward_ports", [])
    files = variables.get("lab_files", [])
    gpus = variables.get("lab_gpus")
    packages = variables.get("lab_packages", [])
    shared = variables.get("lab_shared", [])
    for key, fits, expected in (
        ("lab_forward_ports", _is_list_of_ports(forwards), "a list of port numbers"),
        (
            "lab_files",
            _is_list_of_files(files),
            "a list of {src: PATH or model:NAME, dest: /ABSOLUTE/PATH}",
        ),
        (
            "lab_gpus",
            gpus is None or (kind == "nspawn" and (gpus == "all" or _is_list_of_cards(gpus))),
            "all, or numbers of cards such as [0], on a host of lab_kind: nspawn",
        ),
        ("lab_packages", _is_list_of(packages, _PACKAGE), "a list of names of Debian packages"),
        (
            "lab_shared",
            _is_list_of(shared, _SHARED) and (kind == "nspawn" or not shared),
            "a list of absolute paths, on a host of lab_kind: nspawn",
        ),
    ):
        if not fits:
            return key, expected
    return None


def _parse_host(folder: Path, name: str, variables: dict[str, Any]) -> LabHost:
    def wrong(key: str, expected: str) -> UserError:
        return UserError(
            f"{folder}: host {name}: {key} is {variables.get(key)!r}, expected {expected}",
            fix=f"correct {key} of host {name} in {folder}",
        )

    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name):
        raise UserError(
            f"{folder}: {name!r} cannot be a host name", fix="use a-z, 0-9 and inner hyphens"
        )
    kind = variables["lab_kind"]
    if kind not in KINDS:
        raise wrong("lab_kind", "nspawn or qemu")
    image = variables.get("lab_image", "debian-12")
    if image not in SUITES:
        raise wrong("lab_image", " or ".join(SUITES))
    try:
        address = str(ipaddress.IPv4Address(str(variables.get("lab_address"))))
    except ValueError:
        raise wrong("lab_address", "an IPv4 address such as 10.93.0.11") from None
    memory = variables.get("lab_memory_mb", 4096)
    if not isinstance(memory, int) or memory < 512:
        raise wrong("lab_memory_mb", "a whole number of MiB, at least 512")
    port = variables.get("lab_ssh_port", SSH_PORT[kind])
    if not isinstance(port, int) or not 0 < port < 65536:
        raise wrong("lab_ssh_port", "a port number")
    forwards = variables.get("lab_forward_ports", [])
    files = variables.get("lab_files", [])
    gpus = variables.get("lab_gpus")
    packages = variables.get("lab_packages", [])
    shared = variables.get("lab_shared", [])
    misfit = _find_misfit(variables, kind)
    if misfit:
        raise wrong(*misfit)
    return LabHost(
        name=name,
        kind=kind,
        image=image,
        address=address,
        port=port,
        memory_mb=memory,
        forward_ports=tuple(forwards),
        kernel_arguments=str(variables.get("lab_kernel_arguments", "")),
        files=tuple(LabFile(str(f["src"]), str(f["dest"])) for f in files),
        gpus=gpus is not None,
        cards=tuple(gpus) if isinstance(gpus, list) else (),
        packages=tuple(packages),
        shared=tuple(shared),
    )


def _is_list_of(value: object, pattern: str) -> bool:
    return isinstance(value, list) and all(
        isinstance(word, str) and re.fullmatch(pattern, word) for word in value
    )


def _is_list_of_cards(value: object) -> bool:
    return (
        isinstance(value, list)
        and value != []
        and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)
    )


def _is_list_of_ports(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(port, int) for port in value)


def _is_list_of_files(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(f, dict) and set(f) == {"src", "dest"} and str(f["dest"]).startswith("/")
        for f in value
    )


def _choose_network(
    folder: Path, declared: dict[str, dict[str, Any]], hosts: tuple[LabHost, ...]
) -> ipaddress.IPv4Network:
    networks = {str(v["lab_network"]) for v in declared.values() if "lab_network" in v}
    if len(networks) > 1:
        raise UserError(
            f"{folder}: lab_network differs between hosts: {', '.join(sorted(networks))}",
            fix="set lab_network once, in group_vars",
        )
    text = networks.pop() if networks else f"{hosts[0].address}/24"
    try:
        network = ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        raise UserError(
            f"{folder}: lab_network is {text!r}, expected a network such as 10.93.0.0/24",
            fix="correct lab_network",
        ) from None
    reserved = {network.network_address, network.broadcast_address, next(network.hosts())}
    for host in hosts:
        address = ipaddress.IPv4Address(host.address)
        if address not in network or address in reserved:
            raise UserError(
                f"{folder}: host {host.name}: lab_address {host.address} is not a free address "
                f"of lab_network {network} (its first one is the control machine's own)",
                fix=f"correct lab_address of host {host.name}",
            )
    return network
