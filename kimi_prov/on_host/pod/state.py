"""State of `pod serve` for the probes of its pod, in files of the pod's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import pod
from kimi_prov.on_host.system.files import read_json, write_json

if TYPE_CHECKING:
    from kimi_prov.on_host.pod.mounts import Mounts

# The key by which the probes and the engine know each other.
KEY = "pod.key"
_RUN = "run.json"
_ENDING = "ending"
_SEEN = "seen.json"


def find_port(mounts: Mounts) -> int:
    """Return the port that clients come to; the environment may set another one."""
    text = mounts.environment.get("KIMI_PORT", "")
    return int(text) if text.isdigit() and 0 < int(text) < 65536 else pod.PORT


def find_engine_port(mounts: Mounts) -> int:
    """Return the port of the engine itself: behind the pod's proxy, where it has one."""
    if not pod.is_proxied(mounts.plan):
        return find_port(mounts)
    text = mounts.environment.get("KIMI_ENGINE_PORT", "")
    return int(text) if text.isdigit() and 0 < int(text) < 65536 else pod.ENGINE_PORT


def clear(mounts: Mounts) -> None:
    """Remove the state of an earlier process: a pod's volume outlives its container."""
    shutil.rmtree(mounts.locate(pod.RUN), ignore_errors=True)


def begin(mounts: Mounts, pid: int, *, head: bool, secure: bool) -> None:
    """Write the engine's process, whether requests come to this pod, and whether by TLS."""
    document = {"pid": pid, "head": head, "secure": secure, "at": time.time()}
    write_json(mounts.run(_RUN), document, durable=False)


def end(mounts: Mounts) -> None:
    """Record that the pod ends: it takes no more requests."""
    with contextlib.suppress(OSError), open(mounts.run(_ENDING), "w", encoding="ascii"):
        pass


def read_running(mounts: Mounts) -> dict[str, Any]:
    """Return what `begin` wrote; empty where the engine was not started yet."""
    return read_json(mounts.run(_RUN))


def is_ending(mounts: Mounts) -> bool:
    """Return whether the pod was told to end."""
    return os.path.exists(mounts.run(_ENDING))


def read_seen(mounts: Mounts) -> dict[str, Any]:
    """Return what the probes saw last: `answered`, and the engine's counters."""
    return read_json(mounts.run(_SEEN))


def save_seen(mounts: Mounts, document: dict[str, Any]) -> None:
    """Store that for the next probe, if there is space: without it that probe sends a request."""
    with contextlib.suppress(OSError):
        write_json(mounts.run(_SEEN), document, durable=False)
