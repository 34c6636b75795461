"""`kimi-prov lab up|down|list|ssh`, and the hands that tests need: power and cable of one host."""

from __future__ import annotations

import ipaddress
import os
import shlex
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.lab import files, generated, images, inventory, keys, network, nspawn, qemu, seed
from kimi_prov.lab import settings as control
from kimi_prov.lab.inventory import Kind, Lab, LabHost
from kimi_prov.lab.shell import run, say, tool_environment
from kimi_prov.lab.state import LabState, locked, remove_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.lab.shell import Say

BOOT_TIMEOUT_S: dict[Kind, float] = {"nspawn": 60, "qemu": 300}


@dataclass(frozen=True)
class HostReport:
    """One line of `lab list`."""

    name: str
    kind: Kind
    image: str
    address: str
    port: int
    state: str
    pid: int | None


def up(path: Path, report: Say = say) -> list[HostReport]:
    """Bring up every lab host of the inventory; hosts that are up already stay as they are.

    Raises UserError: exit 2 for an inventory that cannot be, 1 when a host does not come up.
    """
    lab = inventory.load(path)
    with locked(lab.inventory):
        state = LabState.of(lab)
        kinds = _choose_kinds(lab, state, report)
        state.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        apt = control.apt_settings()
        built = {
            (host.image, kinds[host.name]): images.ensure(
                images.recipe(host.image, with_kernel=kinds[host.name] == "qemu", apt=apt), report
            )
            for host in lab.hosts
        }
        public_key = keys.ensure_key(state.key, f"kimi-prov-lab-{lab.ident}")
        _write_known_hosts(lab, state, kinds)
        generated.write(
            generated.plan_files(
                lab,
                generated.group_variables(lab, state, control.detect()),
                {
                    host.name: generated.host_variables(
                        *_where(host, kinds[host.name]), kinds[host.name], host.address
                    )
                    for host in lab.hosts
                },
            ),
            state,
        )
        if "nspawn" in kinds.values():
            network.bring_up(lab)
        kvm = _kvm(lab, kinds, built, state)

        def raise_host(host: LabHost) -> None:
            kind = kinds[host.name]
            image = built[host.image, kind]
            _raise_host(lab, host, kind, image, public_key, kvm=kvm, report=report)

        with ThreadPoolExecutor(max_workers=8) as pool:
            outcomes = [pool.submit(raise_host, host) for host in lab.hosts]
        for outcome in outcomes:
            outcome.result()
        return _list(lab)


def down(path: Path, report: Say = say) -> None:
    """Take the inventory's lab away, with everything it made; nothing happens where there is none."""
    lab = _load_for_down(path)
    with locked(lab.inventory):
        state = LabState.of(lab)
        for name in state.host_names():
            nspawn_or_qemu = state.host(name)
            if nspawn_or_qemu.running_pid() is not None:
                report(f"{name}: ending")
            qemu.stop(nspawn_or_qemu)
        if os.geteuid() == 0 and nspawn.why_not() is None:
            nspawn.sweep(lab)
            for name in {*state.host_names(), *(host.name for host in lab.hosts)}:
                network.drop_cable(lab, name)
            network.take_down(lab)
        generated.remove(lab, state)
        remove_tree(state.folder)
        for empty in (state.folder.parent, state.folder.parent.parent):
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()
        report(f"{lab.name}: nothing left")


def list_hosts(path: Path) -> list[HostReport]:
    """Say of each lab host of the inventory what it runs as, where it answers, and its state."""
    return _list(inventory.load(path))


def ssh_command(path: Path, host_name: str, command: Sequence[str] = ()) -> list[str]:
    """Build the ssh command line that opens a session on the host, or runs `command` there."""
    lab = inventory.load(path)
    return _ssh(lab, lab.host(host_name), command)


def ssh(path: Path, host_name: str, command: Sequence[str] = ()) -> NoReturn:
    """Become ssh on the host; its exit status is the command's."""
    argv = ssh_command(path, host_name, command)
    os.execvpe(argv[0], argv, tool_environment())  # noqa: S606 - a list, no shell


def link(path: Path, host_name: str, *, up: bool) -> None:
    """Plug a host's network cable in, or pull it out (nspawn hosts)."""
    lab = inventory.load(path)
    network.set_link(lab, lab.host(host_name), up=up)


def power(path: Path, host_name: str, *, on: bool, hard: bool = False) -> None:
    """Start a stopped host, or stop it: an orderly poweroff, or `hard` as pulling the plug."""
    if on:
        up(path)
        return
    lab = inventory.load(path)
    host = lab.host(host_name)
    state = LabState.of(lab).host(host.name)
    if not hard:
        subprocess.run(
            _ssh(lab, host, ["systemctl", "poweroff"]), check=False, capture_output=True, timeout=60
        )
        deadline = time.monotonic() + 90
        while state.running_pid() is not None and time.monotonic() < deadline:
            time.sleep(0.1)
    if _kind(lab, host) == "nspawn":
        nspawn.stop(lab, host.name, state)
    else:
        qemu.stop(state)


def reboot(path: Path, host_name: str, *, timeout_s: float = 300) -> None:
    """Reboot a host from the inside and wait until it has booted again."""
    lab = inventory.load(path)
    host = lab.host(host_name)
    before = _boot_mark(lab, host)
    subprocess.run(
        _ssh(lab, host, ["systemctl", "reboot"]), check=False, capture_output=True, timeout=60
    )
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        mark = _boot_mark(lab, host)
        if mark and mark != before:
            _wait_for_boot(lab, host, _kind(lab, host))
            return
        time.sleep(0.3)
    raise UserError(
        f"lab host {host.name} did not come back after a reboot",
        fix=f"read {LabState.of(lab).host(host.name).console}",
        exit_code=ExitCode.FAILED,
    )


def _choose_kinds(lab: Lab, state: LabState, report: Say) -> dict[str, Kind]:
    """Take each host's kind as declared; qemu for all of them where nspawn cannot run."""
    kinds: dict[str, Kind] = {host.name: host.kind for host in lab.hosts}
    if "nspawn" in kinds.values():
        reason = nspawn.why_not()
        if reason is not None:
            report(f"nspawn cannot run here ({reason}): taking qemu, software emulation, instead")
            kinds = dict.fromkeys(kinds, "qemu")
    if "qemu" in kinds.values():
        reason = qemu.why_not()
        if reason is not None:
            raise UserError(
                f"no lab host can run on this machine: {reason}",
                fix="apt-get install qemu-system-x86 qemu-utils mmdebstrap e2fsprogs fakeroot",
            )
    for name, kind in kinds.items():
        was = _recorded_kind(state, name)
        if was is not None and was != kind:
            raise UserError(
                f"lab host {name} exists as {was}, and is now wanted as {kind}",
                fix=f"kimi-prov lab down {lab.inventory}",
            )
    return kinds


def _kvm(
    lab: Lab, kinds: dict[str, Kind], built: dict[tuple[str, Kind], Path], state: LabState
) -> bool:
    starting = [
        host
        for host in lab.hosts
        if kinds[host.name] == "qemu" and state.host(host.name).running_pid() is None
    ]
    return bool(starting) and qemu.kvm_works(built[starting[0].image, "qemu"])


def _raise_host(
    lab: Lab,
    host: LabHost,
    kind: Kind,
    image: Path,
    public_key: str,
    *,
    kvm: bool,
    report: Say,
) -> None:
    state = LabState.of(lab).host(host.name)
    if state.running_pid() is None:
        state.folder.mkdir(parents=True, exist_ok=True)
        state.kind_file.write_text(kind)
        if not state.seed.exists():
            keys.ensure_key(state.host_key, host.name)
            wanted = seed.common_files(lab, host, public_key, state.host_key)
            if kind == "qemu":
                wanted += seed.qemu_network_files(lab, host)
            else:
                wanted.append(seed.resolver_file(control.control_resolvers()))
            seed.write_tar(wanted, state.seed)
        began = time.monotonic()
        if kind == "qemu":
            report(f"{host.name}: starting (qemu, {'KVM' if kvm else 'software emulation'})")
            qemu.start(lab, host, image, state, kvm=kvm)
        else:
            report(f"{host.name}: starting (nspawn)")
            nspawn.start(lab, host, image, state)
        _wait_for_boot(lab, host, kind)
        address, port = _where(host, kind)
        report(f"{host.name}: up at {address} port {port} after {time.monotonic() - began:.1f} s")
    else:
        _wait_for_boot(lab, host, kind)
        report(f"{host.name}: is up")
    files.copy_all(lab, host, state, _ssh_base(lab, host, kind), report)


def _wait_for_boot(lab: Lab, host: LabHost, kind: Kind) -> None:
    """Wait until sshd answers and systemd has finished booting."""
    state = LabState.of(lab).host(host.name)
    where = _where(host, kind)
    deadline = time.monotonic() + BOOT_TIMEOUT_S[kind]
    while time.monotonic() < deadline:
        if _speaks_ssh(where):
            done = run(
                [*_ssh_base(lab, host, kind), "systemctl is-system-running --wait"],
                what=f"host {host.name}: waiting for its boot",
                check=False,
                timeout=BOOT_TIMEOUT_S[kind],
            )
            if done.stdout.strip() in {"running", "degraded"}:
                return
        if state.running_pid() is None:
            break
        time.sleep(0.1)
    raise UserError(
        f"lab host {host.name} does not answer at {where[0]} port {where[1]}: "
        f"{nspawn.tail(state.console)}",
        fix=f"read {state.console}, then `kimi-prov lab down {lab.inventory}`",
        exit_code=ExitCode.FAILED,
    )


def _speaks_ssh(where: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(where, timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _boot_mark(lab: Lab, host: LabHost) -> str:
    """What changes at each boot: the start time of the host's first process."""
    kind = _kind(lab, host)
    if not _speaks_ssh(_where(host, kind)):
        return ""
    done = run(
        [
            *_ssh_base(lab, host, kind),
            "cut -d' ' -f22 /proc/1/stat; cat /proc/sys/kernel/random/boot_id",
        ],
        what="asking for the boot mark",
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def _where(host: LabHost, kind: Kind) -> tuple[str, int]:
    if kind == "qemu":
        return qemu.address(host), host.port if host.kind == "qemu" else inventory.SSH_PORT["qemu"]
    return host.address, host.port


def _recorded_kind(state: LabState, name: str) -> Kind | None:
    path = state.host(name).kind_file
    text = path.read_text() if path.exists() else ""
    return next((kind for kind in inventory.KINDS if kind == text), None)


def _kind(lab: Lab, host: LabHost) -> Kind:
    return _recorded_kind(LabState.of(lab), host.name) or host.kind


def _ssh_base(lab: Lab, host: LabHost, kind: Kind) -> list[str]:
    state = LabState.of(lab)
    address, port = _where(host, kind)
    return [
        *("ssh", "-F", "none", "-i", str(state.key), "-p", str(port), "-o", "BatchMode=yes"),
        *("-o", "ConnectTimeout=20"),
        *keys.ssh_options(state.known_hosts),
        f"root@{address}",
    ]


def _ssh(lab: Lab, host: LabHost, command: Sequence[str]) -> list[str]:
    base = _ssh_base(lab, host, _kind(lab, host))
    if LabState.of(lab).host(host.name).running_pid() is None:
        raise UserError(f"lab host {host.name} is not up", fix=f"kimi-prov lab up {lab.inventory}")
    return [*base, shlex.join(command)] if command else base


def _write_known_hosts(lab: Lab, state: LabState, kinds: dict[str, Kind]) -> None:
    lines = []
    for host in lab.hosts:
        public = keys.ensure_key(state.host(host.name).host_key, host.name)
        lines.append(keys.known_hosts_line(*_where(host, kinds[host.name]), public))
    state.known_hosts.write_text("".join(lines))


def _list(lab: Lab) -> list[HostReport]:
    state = LabState.of(lab)
    reports = []
    for host in lab.hosts:
        kind = _kind(lab, host)
        address, port = _where(host, kind)
        pid = state.host(host.name).running_pid()
        there = state.host(host.name).kind_file.exists()
        status = "up" if pid else ("off" if there else "absent")
        reports.append(HostReport(host.name, kind, host.image, address, port, status, pid))
    return reports


def _load_for_down(path: Path) -> Lab:
    """Read the inventory; where it no longer parses, its path alone still finds what it left."""
    try:
        return inventory.load(path)
    except UserError:
        folder = inventory.check_place(path)
        name, ident = inventory.identify(folder)
        lab = Lab(folder, name, ident, ipaddress.IPv4Network("0.0.0.0/32"))
        if not LabState.of(lab).folder.exists():
            raise
        return lab
