"""Paths of a lab's state, and records of its processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psutil

from kimi_prov import user_dirs
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.lab.shell import run_tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.lab.inventory import Lab


# Environment variable that holds a lab's id in every process that the lab starts.
MARK = "KIMI_PROV_LAB"


def find_state_home() -> Path:
    """Return the folder of all labs' state: $XDG_STATE_HOME/kimi-prov/lab."""
    return user_dirs.find_state_home() / "lab"


@dataclass(frozen=True)
class LabState:
    """The paths of one lab's state."""

    folder: Path

    @classmethod
    def from_lab(cls, lab: Lab) -> LabState:
        """State of `lab`."""
        return cls(find_state_home() / lab.name)

    @property
    def key(self) -> Path:
        """Private key that opens every host of the lab."""
        return self.folder / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The hosts' public keys, so that host key checking stays on."""
        return self.folder / "known_hosts"

    @property
    def record(self) -> Path:
        """The lab as it was last brought up (JSON), so that no later step has to ask Ansible."""
        return self.folder / "lab.json"

    def host(self, name: str) -> HostState:
        """Paths of the host called `name`."""
        return HostState(self.folder / "hosts" / name)

    def shared(self, path: str) -> Path:
        """Return the folder that all hosts which share `path` mount there."""
        return self.folder / "shared" / quote(path, safe="")

    def host_names(self) -> list[str]:
        """Names of the hosts that have state on the disk."""
        folder = self.folder / "hosts"
        return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


@dataclass(frozen=True)
class HostState:
    """The paths of one host's state, and its process."""

    folder: Path

    @property
    def kind_file(self) -> Path:
        """File with the kind as which the host runs; the inventory may declare another."""
        return self.folder / "kind"

    @property
    def pid_file(self) -> Path:
        """`PID STARTTIME`, written by the process itself before it becomes the machine."""
        return self.folder / "pid"

    @property
    def wired_file(self) -> Path:
        """File with the pid that has a cable: an nspawn host without one never boots."""
        return self.folder / "wired"

    @property
    def console(self) -> Path:
        """The output of the machine's console."""
        return self.folder / "console.log"

    @property
    def image_file(self) -> Path:
        """Names the image that the host's disk differs from."""
        return self.folder / "image"

    def image(self) -> Path | None:
        """Folder of the image that the host was first started from; None before that.

        Raises UserError (exit 1) where that image is gone from the cache.
        """
        if not self.image_file.exists():
            return None
        image = Path(self.image_file.read_text())
        if not image.is_dir():
            raise UserError(
                f"lab host {self.folder.name} was started from {image}, which is gone",
                fix="kimi-prov lab down INVENTORY, then up again",
                exit_code=ExitCode.FAILED,
            )
        return image

    def console_tail(self, lines: int = 6) -> str:
        """Return the last lines of the machine's console, as one line."""
        if not self.console.exists():
            return "(nothing)"
        return " | ".join(self.console.read_text(errors="replace").strip().splitlines()[-lines:])

    @property
    def host_key(self) -> Path:
        """The host's own SSH key."""
        return self.folder / "ssh_host_ed25519_key"

    @property
    def seed(self) -> Path:
        """Tar of the files that make the image this host."""
        return self.folder / "seed.tar"

    def running_pid(self) -> int | None:
        """Pid of the machine's process, or None; a reused pid does not count."""
        try:
            pid_text, start = self.pid_file.read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid_text) if read_start_time(int(pid_text)) == start else None


def read_start_time(pid: int) -> str | None:
    """Kernel start time (clock ticks since boot) of a living process; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


# Runs in the machine's process before its own program, so that the machine is recorded before it
# runs. $0 is the pid file, the other words are the program.
_RECORD_AND_EXEC = (
    "read -r s < /proc/$$/stat; n=0; for i in ${s##*) }; do "
    "n=$((n+1)); [ $n = 20 ] && t=$i; done; "
    'printf "%s %s" $$ $t > "$0.new" && mv "$0.new" "$0" && exec "$@"'
)


def launch_host(command: list[str], host: HostState, mark: str) -> None:
    """Start the host's program in a session of its own, its output going to the console file.

    `mark` is in its environment, so that it can be found without its record.
    Returns when the process has recorded itself, which it does before it starts the program.
    """
    host.pid_file.unlink(missing_ok=True)
    run_tool(
        [
            *("sh", "-c", 'setsid sh -c "$0" "$@" >>"$CONSOLE" 2>&1 </dev/null &'),
            _RECORD_AND_EXEC,
            host.pid_file,
            *command,
        ],
        what=f"starting {host.folder.name}",
        environment={"CONSOLE": str(host.console), MARK: mark},
    )
    deadline = time.monotonic() + 10
    while not host.pid_file.exists():
        if time.monotonic() > deadline:
            raise UserError(
                f"lab host {host.folder.name} did not start",
                fix=f"read {host.console}",
                exit_code=ExitCode.FAILED,
            )
        time.sleep(0.01)


def kill_process(host: HostState) -> None:
    """End the host's process at once, and wait until it is gone (at most 20 s)."""
    pid = host.running_pid()
    if pid is None:
        return
    start = read_start_time(pid)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while read_start_time(pid) == start and start is not None:
        if time.monotonic() > deadline:
            raise UserError(
                f"process {pid} of lab host {host.folder.name} does not end",
                fix=f"look at /proc/{pid}/stack, then run `kimi-prov lab down` again",
                exit_code=ExitCode.FAILED,
            )
        time.sleep(0.02)


def remove_empty_homes() -> None:
    """Remove the empty folders above a lab's state."""
    for folder in (find_state_home(), find_state_home().parent):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def remove_tree(folder: Path) -> None:
    """Remove a folder of state with its content, if it exists.

    Raises:
        UserError: a file system of this machine is mounted in it.

    """
    if not folder.exists():
        return
    mounted = [
        row.mountpoint
        for row in psutil.disk_partitions(all=True)
        if Path(row.mountpoint).is_relative_to(folder.resolve())
    ]
    if mounted:
        # The build of an image mounts /proc, /sys and /dev, and outlives a killed `kimi-prov`.
        raise UserError(
            f"{folder} is to be removed, and {', '.join(sorted(mounted))} is mounted in it",
            fix="end the program that mounted it (ps aux | grep mmdebstrap), then `umount` each",
        )
    shutil.rmtree(folder)


@contextmanager
def lock_lab(inventory: Path) -> Iterator[None]:
    """Hold the lab's lock: `up` and `down` of one inventory go one after the other.

    The lock is on the inventory folder itself, so nothing is left behind; without the folder
    there is nothing to bring up.
    """
    if not inventory.is_dir():
        yield
        return
    handle = os.open(inventory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
