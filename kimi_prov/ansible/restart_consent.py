"""Whether a machine may be restarted: its inventory consents, and it is not the control machine.

Decides: which packages are updated, and what needs a restart (consent).
"""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ansible.plugins.action import ActionBase

    from kimi_prov.contract.documents.facts import Facts


def find_refusal(
    action: ActionBase,
    host: str,
    facts: Facts,
    consent: tuple[str, object],
    instead: str,
    *,
    itself: bool = False,
) -> tuple[str, str] | None:
    """Return why a host may not be restarted, and the fix; None where it may.

    `consent` is the name of the inventory's option, and its value; `instead` says what else can
    be done on the control machine. `itself`: consent to restart the control machine too, which
    ends the run; the unit that started it goes on after the boot.
    """
    option, value = consent
    if is_control(action, facts) and not itself:
        reason = "it is the machine that this runs on, which is never restarted from here"
        return reason, f"run this from another machine, or {instead}"
    if value is not True:
        return f"{option} is not true", f"set {option}: true for {host} in the inventory"
    return None


def is_control(action: ActionBase, facts: Facts) -> bool:
    """Whether the host is the control machine; containers of one image share the id alone."""
    if action._connection.transport == "local":
        return True
    host = facts.get("host") or {}
    try:
        identity = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return False
    own = hashlib.sha256(f"kimi-prov:{identity}".encode()).hexdigest()[:32]
    return (host.get("machine_id_hash"), host.get("hostname")) == (own, socket.gethostname())
