"""The lock that keeps a second apply off a machine: its holder, and what its answers mean."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kimi_prov.ansible.remote import RemoteError, build_failure, call
from kimi_prov.ansible.send import call_sent
from kimi_prov.contract import clean_text, paths

if TYPE_CHECKING:
    from ansible.plugins.action import ActionBase

    from kimi_prov.contract.documents.lock import LockAnswer, LockHolder


def describe_holder() -> LockHolder:
    """Return this run as a holder: the ansible-playbook process, the parent of this worker."""
    pid = os.getppid()
    machine = _identify_control_machine()
    start = _read_start_time(pid)
    return {
        "user": getpass.getuser(),
        "control_host": socket.gethostname(),
        "control_id": machine,
        "pid": pid,
        "pid_start": start,
        "run": f"{machine[:12]}-{pid}-{start}",
    }


def take_over(action: ActionBase, answer: LockAnswer) -> LockAnswer:
    """Return the answer to `acquire`, after taking the lock over from a holder that has ended.

    Only for a holder on this control machine it is known that it has ended. Raises RemoteError.
    """
    we = describe_holder()
    if answer["held"] or not _has_ended(answer["holder"], we):
        return answer
    taken = call_sent(action, "lock", "take", json.dumps(we), answer["holder"]["run"])
    return cast("LockAnswer", taken)


def release(action: ActionBase) -> None:
    """Release our own lock only. Raises RemoteError where the machine does not answer."""
    words = ("lock", "release", str(describe_holder()["run"]))
    try:
        call(action, *words)
    except RemoteError:
        # Without a working program on the machine, the code that is sent along does it.
        call_sent(action, *words)


def build_refusal(host: str, answer: LockAnswer) -> dict[str, Any]:
    """Return the result of a plugin where another run holds the lock."""
    other = answer["holder"]
    who = (
        f"{other.get('user')}@{other.get('control_host')}, process {other.get('pid')}, since "
        f"{other.get('since')}"
    )
    return build_failure(
        f"{host}: another apply is running there and holds the lock: {who} (last seen "
        f"{answer['age_s']} s ago)",
        "wait until it ends; if it is gone for good:  "
        f"ssh {clean_text.quote_word(host)} rm {paths.APPLY_LOCK}",
        "locked",
    )


def build_loss(host: str) -> dict[str, Any]:
    """Return the result of a plugin whose run has lost its lock."""
    return build_failure(
        f"{host}: the apply lock was lost while the machine waited for its batch: another run may "
        "have changed it since it was described",
        "run the same command again",
        "locked",
    )


def _identify_control_machine() -> str:
    """Return a digest that identifies the control machine and does not reveal its machine id."""
    try:
        identity = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        identity = ""
    # Containers of one image share the machine id, but not the host name.
    return hashlib.sha256(f"{identity}:{socket.gethostname()}".encode()).hexdigest()


def _read_start_time(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rsplit(")", 1)[1].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _has_ended(other: LockHolder, we: LockHolder) -> bool:
    """Whether the holder ran on this control machine and has ended."""
    same = other.get("control_id") == we["control_id"]
    pid, start = other.get("pid"), other.get("pid_start")
    return bool(same and isinstance(pid, int) and start and _read_start_time(pid) != start)
