"""Lab hosts that serve one model together: asked through the head's port, harmed, watched."""

from __future__ import annotations

import shlex
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import yaml
from machines import Host, Lab, kimi_prov, make_lab
from waiting import until

from kimi_prov.on_host.endpoint import api_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

CONTROL_PORT = 29500
API_PORT = 8000
HEAD_UNIT = "kimi-serve@0.service"
RANK_UNIT = "kimi-rank.service"
# A group's start on a computer with much else to do.
START_S = 900.0
# A request in the engine's hands when a process of it is stopped: told dead after a minute.
PATIENCE_S = 150.0
# What a refusal takes at most; a hang takes minutes.
AT_ONCE_S = 10.0
# A harm that takes longer is told with the time since its end.
SHORT_S = 5.0
SERVED, REFUSED, AWAY = 200, 503, 0


@dataclass(frozen=True)
class Answer:
    """HTTP status of a chat (AWAY where nothing answered), when it was asked, how long it took."""

    status: int
    at: float
    took_s: float


@dataclass(frozen=True)
class Recovery:
    """Seconds from the harm, and from its end, to the first answer; all answers meanwhile."""

    took_s: float
    since_end_s: float
    answers: list[Answer]

    @property
    def refused_s(self) -> list[float]:
        """Seconds that each refusal (503) took, but that of the first request that was lost.

        The engine may have had it in its hands: it is told dead only when the harm is noticed.
        """
        lost = [answer for answer in self.answers if answer.status != SERVED]
        return [answer.took_s for answer in lost[1:] if answer.status == REFUSED]

    def __str__(self) -> str:
        longest = max(answer.took_s for answer in self.answers)
        harm_s = self.took_s - self.since_end_s
        ended = f", {self.since_end_s:.0f} s after its end" if harm_s > SHORT_S else ""
        return f"{self.took_s:.0f} s{ended}; longest request {longest:.0f} s"


@dataclass
class Group:
    """The hosts of one group in order of their rank; the first is the head."""

    lab: Lab
    members: list[Host] = field(default_factory=list)

    @property
    def head(self) -> Host:
        return self.members[0]

    def unit(self, host: Host) -> str:
        return HEAD_UNIT if host is self.head else RANK_UNIT

    @cached_property
    def door(self) -> tuple[str, str]:
        """A key of the head's port and the fingerprint of its certificate."""
        return self.head.door()

    def chat(self, patience_s: float = PATIENCE_S, key: str | None = None) -> Answer:
        """Ask for one token through the head's port, from this computer; verify's key by default.

        That key is no use of the model: it wakes nobody.
        """
        own, pin = self.door
        body = {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1}
        began = time.monotonic()
        try:
            with socket.create_connection((self.head.address, API_PORT), timeout=3):
                pass
            endpoint = api_client.Endpoint(self.head.address, API_PORT, pin, patience_s)
            status = api_client.request_chat(endpoint, key or own, body).status
        except (OSError, api_client.ApiError):
            status = AWAY
        return Answer(status, began, time.monotonic() - began)

    @contextmanager
    def asked(self) -> Iterator[list[Answer]]:
        """Ask again and again, one request after the other, for as long as the block lasts."""
        seen: list[Answer] = []
        assert self.door  # read while the head is there
        over = threading.Event()

        def ask() -> None:
            while not over.wait(0.5):
                seen.append(self.chat())

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            thread.join()

    def show(self, host: Host, name: str) -> str:
        """One property of a member's unit."""
        return host.ssh(f"systemctl show -P {name} {self.unit(host)}").strip()

    def starts(self) -> dict[str, str]:
        """What tells each member's present start of its engine from every other."""
        return {host.name: self.show(host, "InvocationID") for host in self.members}

    def worker(self, host: Host) -> int:
        """The largest process of the engine that has no child: the one that computes."""
        return int(host.ssh(LARGEST_LEAF % self.unit(host)))

    def processes_file(self, host: Host) -> str:
        """Where the kernel lists the processes of a member's unit, as a word for a shell."""
        return shlex.quote(f"/sys/fs/cgroup{self.show(host, 'ControlGroup')}/cgroup.procs")

    def runs_engine(self, host: Host) -> bool:
        """Whether the supervisor of a member has started the engine, its only child."""
        return host.ssh(f"pgrep -P {self.show(host, 'MainPID')} || true").strip() != ""

    def journal(self, host: Host, lines: int = 60) -> str:
        return host.ssh(f"journalctl -u {self.unit(host)} -o cat -n {lines} --no-pager")

    def told(self) -> str:
        """The end of each member's journal, for a message."""
        return "\n".join(f"{host.name}:\n{self.journal(host)}" for host in self.members)

    def harmed(self, harm: Callable[[], object], limit_s: float = START_S) -> Recovery:
        """Do harm to a group that serves; wait until all have started anew and the head answers."""
        assert until(lambda: self.chat().status == SERVED, limit_s), self.told()
        before = self.starts()
        with self.asked() as asking:
            began = time.monotonic()
            harm()
            ended = time.monotonic()
            while not self.recovered(seen := [*asking], before):
                late = time.monotonic() - ended > limit_s
                assert not late, f"not served again: {seen[-5:]}\n{self.told()}"
                time.sleep(1)
        lost = max(place for place, answer in enumerate(seen) if answer.status != SERVED)
        first = seen[lost + 1].at
        return Recovery(first - began, first - ended, seen)

    def recovered(self, seen: list[Answer], before: dict[str, str]) -> bool:
        """Whether a request was lost, the last one answered, and every member started anew."""
        statuses = [answer.status for answer in seen]
        if statuses[-1:] != [SERVED] or {*statuses} == {SERVED}:
            return False
        now = self.starts()
        return all(now[name] != start for name, start in before.items())


def answered(host: Host, address: str, ports: Iterable[int], user: str = "root") -> set[int]:
    """The ports at which a user's connection is answered; all are tried at once."""
    knock = f'timeout 5 bash -c "exec 3<>/dev/tcp/{address}/$port" 2>/dev/null && echo $port'
    each = f"for port in {' '.join(map(str, ports))}; do ({knock}) & done; wait"
    return {int(port) for port in host.ssh(f"runuser -u {user} -- bash -c '{each}'").split()}


LARGEST_LEAF = r"""
python3 - <<'EOF'
import subprocess
show = ["systemctl", "show", "-P", "ControlGroup", "%s"]
group = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
rows = {}
for pid in open(f"/sys/fs/cgroup{group}/cgroup.procs").read().split():
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    rows[pid] = (fields[1], int(fields[21]))
parents = {parent for parent, _ in rows.values()}
print(max((pid for pid in rows if pid not in parents), key=lambda pid: rows[pid][1]))
EOF
"""


def make_group(inventory: Path, network: str, size: int, **wishes: object) -> Group:
    """Write the inventory of a group of lab hosts."""
    names = ["head", *(f"rank{number}" for number in range(1, size))]
    lab = make_lab(inventory, network, nodes=names, kimi_hosts_per_model=size, **wishes)
    return Group(lab, [lab.hosts[name] for name in names])


def shipped_group(inventory: Path, network: str) -> Group:
    """Write the shipped inventory of a group, in another network."""
    done = kimi_prov("init", inventory, "--profile", "lab-group")
    assert done.returncode == 0, done.stderr
    for file in (path for path in inventory.rglob("*.yml") if path.is_file()):
        file.write_text(file.read_text().replace("10.93.10.", f"{network}."))
    hosts = yaml.safe_load((inventory / "hosts.yml").read_text())["all"]["children"]
    rows = hosts["kimi"]["children"]["pair"]["hosts"] | hosts["kimi_outsiders"]["hosts"]
    made = {name: Host(name, row["lab_address"], inventory) for name, row in rows.items()}
    return Group(Lab(inventory, made), [host for name, host in made.items() if name != "client"])
