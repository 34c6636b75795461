"""One stand-in machine of either kind: its address, start, boot and files."""

from __future__ import annotations

import shlex
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.lab import files, inventory, keys, nspawn, qemu, seed
from kimi_prov.lab.settings import find_control_resolvers
from kimi_prov.lab.shell import run_tool
from kimi_prov.lab.state import HostState, LabState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.lab.inventory import Kind, Lab, LabHost
    from kimi_prov.lab.shell import Say

# An emulated sshd needs seconds for its key exchange.
ANSWER_TIMEOUT_S: dict[Kind, float] = {"nspawn": 10, "qemu": 60}
_BOOT_STATE = "systemctl is-system-running; systemctl list-jobs --no-legend --no-pager"
BOOT_TIMEOUT_S: dict[Kind, float] = {"nspawn": 120, "qemu": 400}


def has_booted(said: str) -> bool:
    """Whether systemd has finished booting, apart from engines, by its state and open jobs.

    A line for each job: number, unit, kind, state. A job that waits for others is `waiting`.
    """
    state, *jobs = said.splitlines() or [""]
    if state in {"running", "degraded"}:
        return True
    running = [job.split()[1] for job in jobs if job.split()[-1:] == ["running"]]
    return bool(running) and all(unit.startswith("kimi-") for unit in running)


@dataclass(frozen=True)
class Machine:
    """A lab host, with the kind as which it runs."""

    lab: Lab
    host: LabHost
    kind: Kind
    # Set when the whole `up` ends, so that no thread waits for a boot.
    cancelled: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def existing(cls, lab: Lab, name: str) -> Machine:
        """Return the machine as it was last started, or as declared if it never was."""
        host = lab.host(name)
        return cls(lab, host, read_recorded_kind(LabState.from_lab(lab), name) or host.kind)

    @property
    def state(self) -> HostState:
        """The machine's state on the control machine's disk."""
        return LabState.from_lab(self.lab).host(self.host.name)

    @property
    def address(self) -> str:
        """Address at which the control machine reaches it."""
        return qemu.make_address(self.host) if self.kind == "qemu" else self.host.address

    @property
    def port(self) -> int:
        """Port of its sshd, as the control machine sees it."""
        if self.kind != self.host.kind:
            return inventory.SSH_PORT[self.kind]
        return self.host.port

    @property
    def gateway(self) -> str:
        """The control machine's address, as the host sees it."""
        return seed.SLIRP_GATEWAY if self.kind == "qemu" else self.lab.gateway

    @property
    def status(self) -> str:
        """Return `up`, `off` (its disk exists) or `absent`."""
        if self.state.running_pid() is not None:
            return "up"
        return "off" if self.state.kind_file.exists() else "absent"

    def ssh(self, command: Sequence[str] = ()) -> list[str]:
        """Build the ssh command line; a single word is a command line for the host's shell."""
        lab_state = LabState.from_lab(self.lab)
        remote = list(command) if len(command) <= 1 else [shlex.join(command)]
        return [
            *("ssh", "-F", "none", "-i", str(lab_state.key), "-p", str(self.port)),
            *("-o", "BatchMode=yes", "-o", "ConnectTimeout=20"),
            *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6"),
            *keys.make_ssh_options(lab_state.known_hosts),
            f"root@{self.address}",
            *remote,
        ]

    def start(self, image: Path, public_key: str, *, kvm: bool, report: Say) -> None:
        """Boot the machine unless it runs, and wait until it has booted."""
        name, state = self.host.name, self.state
        if self._half_started():
            self.kill()
        if state.running_pid() is not None:
            self.wait_for_boot()
            report(f"{name}: is up")
            return
        state.folder.mkdir(parents=True, exist_ok=True)
        state.kind_file.write_text(self.kind)
        state.image_file.write_text(str(image))
        if not state.seed.exists():
            self._write_seed(public_key)
        began = time.monotonic()
        if self.kind == "qemu":
            report(f"{name}: starting (qemu, {'KVM' if kvm else 'software emulation'})")
            qemu.start_host(self.lab, self.host, image, state, self.port, kvm=kvm)
        else:
            report(f"{name}: starting (nspawn)")
            nspawn.start_host(self.lab, self.host, image, state)
        self.wait_for_boot()
        report(f"{name}: up at {self.address}:{self.port} after {time.monotonic() - began:.1f} s")

    def _half_started(self) -> bool:
        """Whether `up` was interrupted between the start of the process and its network setup."""
        pid, wired = self.state.running_pid(), self.state.wired_file
        if pid is None or self.kind == "qemu":
            return False
        laid = wired.exists() and wired.read_text() == str(pid)
        return not laid and not self.answers_ssh()

    def _write_seed(self, public_key: str) -> None:
        seed_files = seed.make_common_files(self.lab, self.host, public_key, self.state.host_key)
        if self.kind == "qemu":
            seed_files += seed.make_qemu_network_files(self.lab, self.host)
        else:
            seed_files.append(seed.make_resolver_file(find_control_resolvers()))
        seed.write_tar(seed_files, self.state.seed)

    def kill(self) -> None:
        """End the machine at once; its disk stays."""
        if self.kind == "qemu":
            qemu.stop_host(self.state)
        else:
            nspawn.stop_host(self.lab, self.host.name, self.state)

    def wait_for_boot(self) -> None:
        """Wait until sshd answers and systemd has finished booting; UserError (exit 1) if never.

        An engine that is starting is not waited for: that takes many minutes under emulation.
        """
        deadline = time.monotonic() + BOOT_TIMEOUT_S[self.kind]
        while time.monotonic() < deadline and not self.cancelled.is_set():
            if self.answers_ssh() and has_booted(self.output_of(_BOOT_STATE)):
                return
            if self.state.running_pid() is None:
                break
            time.sleep(0.1)
        raise UserError(
            f"lab host {self.host.name} does not answer at {self.address}:{self.port}; "
            f"its console ends with: {self.state.console_tail()}",
            fix=f"read {self.state.console}, then  kimi-prov lab down "
            f"{clean_text.quote_word(self.lab.inventory)}",
            exit_code=ExitCode.FAILED,
        )

    def answers_ssh(self) -> bool:
        """Whether an sshd answers at the machine's address."""
        try:
            with socket.create_connection((self.address, self.port), timeout=2) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def output_of(self, command: str) -> str:
        """Return what `command` prints on the host; nothing where the host does not answer.

        A host that is shutting down may accept a session and never answer: the wait is short.
        """
        try:
            done = run_tool(
                self.ssh([command]),
                what=f"running a command on lab host {self.host.name}",
                check=False,
                timeout=ANSWER_TIMEOUT_S[self.kind],
            )
        except UserError:
            return ""
        return done.stdout.strip()

    def run_detached(self, command: str) -> None:
        """Run `command` on the host after this session has ended: the command may cut it."""
        self.output_of(f"nohup sh -c 'sleep 0.2; {command}' >/dev/null 2>&1 </dev/null &")

    def boot_id(self) -> str:
        """Return a text that changes at each boot of a host of either kind; "" while it is down."""
        if not self.answers_ssh():
            return ""
        return self.output_of("cut -d' ' -f22 /proc/1/stat; cat /proc/sys/kernel/random/boot_id")

    def copy_files(self, sources: Mapping[str, Path], report: Say) -> None:
        """Copy the changed files of `lab_files` (`sources`: path here by `src`).

        The lab's /etc/hosts is copied too, because a host may have joined since.
        """
        ssh, state = self.ssh(), self.state
        hosts = state.folder / "hosts"
        text = seed.make_hosts_file(self.lab).content
        if not hosts.exists() or hosts.read_bytes() != text:
            hosts.write_bytes(text)
        files.copy_changed(hosts, "/etc/hosts", ssh, state, lambda _line: None)
        for file in self.host.files:
            files.copy_changed(sources[file.src], file.dest, ssh, state, report)


def read_recorded_kind(state: LabState, name: str) -> Kind | None:
    """Return the kind as which the host was last started; None if it never was."""
    path = state.host(name).kind_file
    text = path.read_text() if path.exists() else ""
    return next((kind for kind in inventory.KINDS if kind == text), None)
