"""Operations on a lab's hosts: up, down, list, and for tests the power and network of a host."""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.lab import (
    files,
    generated,
    gpus,
    images,
    inventory,
    keys,
    network,
    nspawn,
    orphans,
    qemu,
)
from kimi_prov.lab import settings as control
from kimi_prov.lab.inventory import Kind, Lab
from kimi_prov.lab.machine import Machine, read_recorded_kind
from kimi_prov.lab.shell import print_progress
from kimi_prov.lab.state import LabState, find_state_home, lock_lab, remove_empty_homes, remove_tree

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kimi_prov.lab.shell import Say


@dataclass(frozen=True)
class HostReport:
    """One line of `lab list`; `state` is up, off or absent."""

    name: str
    kind: Kind
    image: str
    address: str
    port: int
    state: str
    pid: int | None


def start_lab(path: Path, report: Say = print_progress) -> list[HostReport]:
    """Start every lab host of the inventory; hosts that run already stay as they are.

    Raises UserError: exit 2 for an invalid inventory, 1 when a host does not start.
    """
    lab = inventory.load_lab(path)
    sources = files.resolve_all(lab)
    with lock_lab(lab.inventory):
        state = LabState.from_lab(lab)
        kinds = _choose_kinds(lab, state, report)
        if "nspawn" in kinds.values():
            network.reserve_network(lab, orphans.has_processes, report)
        cancelled = threading.Event()
        machines = [Machine(lab, host, kinds[host.name], cancelled) for host in lab.hosts]
        planned = generated.plan_files(lab, state, machines, control.detect_variables())
        built = _ensure_images(machines, report)
        state.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state.record.write_text(inventory.dump_lab(lab))
        public_key = keys.ensure_key(state.key, f"kimi-prov-lab-{lab.ident}")
        _write_known_hosts(state, machines)
        generated.write_files(planned)
        if "nspawn" in kinds.values():
            network.set_up(lab)
        kvm = _has_kvm(machines, built)

        def bring_up(machine: Machine) -> None:
            machine.start(built[machine.host.name], public_key, kvm=kvm, report=report)
            machine.copy_files(sources, report)

        with ThreadPoolExecutor(max_workers=8) as pool:
            outcomes = [pool.submit(bring_up, machine) for machine in machines]
            try:
                for outcome in outcomes:
                    outcome.result()
            except BaseException:
                cancelled.set()
                raise
        return _list(lab)


def remove_lab(path: Path, report: Say = print_progress) -> None:
    """Remove the inventory's lab and everything that it created, if there is one."""
    lab = _load_for_down(path)
    with lock_lab(lab.inventory):
        state = LabState.from_lab(lab)
        names = {*state.host_names(), *(host.name for host in lab.hosts)}
        running = [n for n in sorted(names) if state.host(n).running_pid() is not None]
        orphans.end_sessions(lab, state)
        for name in running:
            report(f"{name}: ending")
            qemu.stop_host(state.host(name))
        orphans.end_unrecorded(lab)
        if os.geteuid() == 0:
            nspawn.end_leftovers(lab)
            network.take_down(lab, names)
        generated.remove_files(lab.inventory)
        remove_tree(state.folder)
        remove_empty_homes()
        report(f"{lab.name}: nothing left")


def list_hosts(path: Path) -> list[HostReport]:
    """Return the kind, address and state of each lab host of the inventory."""
    return _list(inventory.load_lab(path))


def list_labs() -> list[Lab]:
    """Return every lab that was brought up here and has hosts still."""
    labs: list[Lab] = []
    for record in sorted(find_state_home().glob("*/lab.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            labs.append(inventory.restore_lab(record.read_text()))
    return labs


def list_all_hosts() -> list[tuple[Path, HostReport]]:
    """Return the hosts of every lab, each with its inventory."""
    return [(lab.inventory, host) for lab in list_labs() for host in _list(lab)]


def make_ssh_command(path: Path, host_name: str, command: Sequence[str] = ()) -> list[str]:
    """Build the ssh command line that opens a session on the host, or runs `command` there."""
    lab = _as_brought_up(path)
    machine = Machine.existing(lab, host_name)
    if machine.status != "up":
        raise UserError(
            f"lab host {host_name} is {machine.status}",
            fix=f"kimi-prov lab up {clean_text.quote_word(lab.inventory)}",
        )
    return machine.ssh(command)


def link(path: Path, host_name: str, *, up: bool) -> None:
    """Connect or disconnect a host's network cable (nspawn hosts)."""
    lab = _as_brought_up(path)
    network.set_link(lab, lab.host(host_name), up=up)


def switch_power(path: Path, host_name: str, *, on: bool, hard: bool = False) -> None:
    """Start a stopped host, or stop it: by a poweroff, or with `hard` by killing it."""
    if on:
        start_lab(path)
        return
    machine = Machine.existing(_as_brought_up(path), host_name)
    if not hard and machine.status == "up":
        machine.run_detached("systemctl poweroff")
        deadline = time.monotonic() + 90
        while machine.status == "up" and time.monotonic() < deadline:
            time.sleep(0.1)
    machine.kill()


def restart_host(path: Path, host_name: str, *, timeout_s: float = 400) -> None:
    """Reboot a host by its own command and wait until it has booted again.

    Raises UserError (exit 1) where it has not come back after `timeout_s` seconds.
    """
    machine = Machine.existing(_as_brought_up(path), host_name)
    before = machine.boot_id()
    machine.run_detached("systemctl reboot")
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if machine.boot_id() not in {"", before}:
            machine.wait_for_boot()
            return
        time.sleep(0.3)
    raise UserError(
        f"lab host {host_name} did not come back after a reboot",
        fix=f"read {machine.state.console}",
        exit_code=ExitCode.FAILED,
    )


def _check_gpus(lab: Lab, reason: str | None) -> None:
    """Refuse GPUs that do not exist, and GPUs where nspawn cannot run; `reason`: why it cannot."""
    requested = [host.cards for host in lab.hosts if host.gpus]
    for cards in requested:
        gpus.find_gpus(cards=cards)
    if requested and reason is not None:
        raise UserError(
            f"lab_gpus wants an nspawn host, and nspawn cannot run here: {reason}",
            fix="kimi-prov lab up as root, on the machine that has the GPUs",
        )


def _choose_kinds(lab: Lab, state: LabState, report: Say) -> dict[str, Kind]:
    """Choose each host's declared kind, or qemu for all of them where nspawn cannot run."""
    kinds: dict[str, Kind] = {host.name: host.kind for host in lab.hosts}
    if "nspawn" in kinds.values():
        reason = nspawn.find_obstacle()
        _check_gpus(lab, reason)
        if reason is not None and any(host.shared for host in lab.hosts):
            raise UserError(
                f"lab_shared wants an nspawn host, and nspawn cannot run here: {reason}",
                fix="kimi-prov lab up as root, on a machine that has systemd-nspawn",
            )
        if reason is not None:
            report(f"nspawn cannot run here ({reason}): taking qemu, software emulation, instead")
            kinds = dict.fromkeys(kinds, "qemu")
    if "qemu" in kinds.values():
        reason = qemu.find_obstacle()
        if reason is not None:
            raise UserError(f"no lab host can run on this machine: {reason}", fix=qemu.INSTALL)
    for name, kind in kinds.items():
        was = read_recorded_kind(state, name)
        if was is not None and was != kind:
            raise UserError(
                f"lab host {name} exists as {was}, and is now wanted as {kind}",
                fix=f"kimi-prov lab down {clean_text.quote_word(lab.inventory)}",
            )
    return kinds


def _ensure_images(machines: list[Machine], report: Say) -> dict[str, Path]:
    """Return each host's image by name: that of its first start, or the present recipe's.

    A host's disk holds only the difference from its image, so the host stays with that image.
    """
    apt = control.read_apt_settings()
    return {
        m.host.name: m.state.image()
        or images.ensure_image(
            images.make_recipe(
                m.host.image,
                with_kernel=m.kind == "qemu",
                apt=apt,
                packages=m.host.packages,
            ),
            report,
        )
        for m in machines
    }


def _has_kvm(machines: list[Machine], built: dict[str, Path]) -> bool:
    starting = [m for m in machines if m.kind == "qemu" and m.status != "up"]
    return bool(starting) and qemu.has_working_kvm(built[starting[0].host.name])


def _write_known_hosts(state: LabState, machines: list[Machine]) -> None:
    lines = []
    for machine in machines:
        public = keys.ensure_key(machine.state.host_key, machine.host.name)
        lines.append(keys.format_known_hosts_line(machine.address, machine.port, public))
    state.known_hosts.write_text("".join(lines))


def _list(lab: Lab) -> list[HostReport]:
    return [
        HostReport(
            m.host.name, m.kind, m.host.image, m.address, m.port, m.status, m.state.running_pid()
        )
        for m in (Machine.existing(lab, host.name) for host in lab.hosts)
    ]


def _as_brought_up(path: Path) -> Lab:
    """Return the lab as `up` recorded it, else as the inventory declares it.

    The path alone finds the record, also when the inventory has become unreadable since.
    """
    state = LabState(find_state_home() / inventory.identify_lab(path)[0])
    try:
        return inventory.restore_lab(state.record.read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return inventory.load_lab(path)


def _load_for_down(path: Path) -> Lab:
    """Read the lab; if nothing can be read any more, return one that its path identifies."""
    try:
        return _as_brought_up(path)
    except UserError:
        name, ident = inventory.identify_lab(path)
        lab = Lab(path.resolve(), name, ident, ipaddress.IPv4Network("0.0.0.0/32"))
        there = (
            LabState.from_lab(lab).folder.exists()
            or network.is_up(lab)
            or orphans.has_processes(lab)
        )
        if not there:
            raise
        return lab
