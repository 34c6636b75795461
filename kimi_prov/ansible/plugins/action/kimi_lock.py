"""Action `kimi_lock`: keep a second apply off the machine while one is running."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, failure
from kimi_prov.ansible.send import run_sent
from kimi_prov.contract import paths


class ActionModule(ActionBase):  # type: ignore[misc]
    """`state: present` takes the lock or says who holds it; `absent` gives it back."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Take or give back. In check mode nothing is written and nobody kept off."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        if self._task.check_mode:
            return result | {"msg": "check mode: no lock is taken"}
        holder = _holder()
        try:
            if self._task.args.get("state", "present") == "absent":
                run_sent(self, "lock", "release", holder["run"])
                return result
            answer = run_sent(self, "lock", "acquire", json.dumps(holder))
            if not answer["held"] and _ended(answer["holder"], holder):
                answer = run_sent(
                    self, "lock", "take", json.dumps(holder), str(answer["holder"]["run"])
                )
        except RemoteError as error:
            return result | failure(str(error))
        if answer["held"]:
            return result
        host = (task_vars or {}).get("inventory_hostname", "the machine")
        return result | _refusal(str(host), answer)


def _holder() -> dict[str, Any]:
    """Who we are: the ansible-playbook process, which is the parent of the worker we run in."""
    pid = os.getppid()
    machine = _machine()
    start = _start(pid)
    return {
        "user": getpass.getuser(),
        "control_host": socket.gethostname(),
        "control_id": machine,
        "pid": pid,
        "pid_start": start,
        "run": f"{machine[:12]}-{pid}-{start}",
    }


def _machine() -> str:
    """Tell control machines apart without telling the machine's id."""
    try:
        identity = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        identity = ""
    # Containers made from one image share the id, and then the name differs.
    return hashlib.sha256(f"{identity}:{socket.gethostname()}".encode()).hexdigest()


def _start(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rsplit(")", 1)[1].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _ended(other: dict[str, Any], we: dict[str, Any]) -> bool:
    """Whether the holder ran on this very machine and is gone."""
    same = other.get("control_id") == we["control_id"]
    pid, start = other.get("pid"), other.get("pid_start")
    return bool(same and isinstance(pid, int) and start and _start(pid) != start)


def _refusal(host: str, answer: dict[str, Any]) -> dict[str, Any]:
    other = answer["holder"]
    who = (
        f"{other.get('user')}@{other.get('control_host')}, process {other.get('pid')}, since "
        f"{other.get('since')}"
    )
    return failure(
        f"{host}: another apply is running there and holds the lock: {who} (last seen "
        f"{answer['age_s']} s ago)",
        f"wait until it ends; if it is gone for good:  ssh {host} rm {paths.APPLY_LOCK}",
        "locked",
    )
