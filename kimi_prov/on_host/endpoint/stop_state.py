"""The stop state of a machine that is stopped or asleep, and the proxy's answer to clients.

The stop state is `/var/lib/kimi/state/stopped.json`. While it exists systemd starts no engine, at a
boot or by hand: each engine's unit has a condition on it. The answer to clients is in a map that
HAProxy reads, `/etc/kimi/proxy/rest.map`; the map is empty while the machine serves.

Decides: what stops a machine on purpose, and what its clients get as an answer (the answer).
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import PROXY_USER, Paths
from kimi_prov.contract.state_files import KeptState
from kimi_prov.on_host.endpoint import draining, haproxy, stop_log
from kimi_prov.on_host.system import files, kept_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STOPPED, ASLEEP = "stopped", "asleep"
# A machine that switched itself off has a row in its history, and no stop state.
OFF = "off"
# OpenAI's clients accept a Retry-After of up to a minute.
RETRY_S = 60
_FORM = KeptState("", {"state": str, "since": str, "why": str})
_CODES = {STOPPED: "model_stopped", ASLEEP: "model_asleep"}


def read(paths: Paths) -> kept_state.State:
    """Return the stop state; empty where the machine is to serve.

    A damaged file is a stop too: systemd starts no engine while it exists, and `start` removes it.
    """
    try:
        return kept_state.read_file(paths.stopped, _FORM)
    except kept_state.DamagedStateError as error:
        since_s = paths.stopped.lstat().st_mtime
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since_s))
        return {"state": STOPPED, "since": since, "since_s": round(since_s), "why": error.message}


def describe(found: Mapping[str, Any]) -> str:
    """Describe for the operator the stop: since when, and by whom."""
    by = found.get("by") or {}
    who = f" by {by['user']}@{by.get('control_host')}" if by.get("user") else ""
    word = "asleep" if found["state"] == ASLEEP else "stopped on purpose"
    return f"{word} since {found['since']}{who}"


def write(paths: Paths, mark: Mapping[str, Any]) -> None:
    """Write the stop state and the proxy's answer: from now on clients are refused with the reason.

    Raises OSError where it cannot be written; the engines then go on serving.
    """
    was = read(paths)
    files.make_directory(paths.state, 0o700)
    files.write_json(str(paths.stopped), mark, mode=0o600)
    if mark["state"] == STOPPED:
        # A wake that is under way starts nothing from here on.
        files.remove(str(paths.waking))
    try:
        publish(paths)
    except OSError:
        if not was:
            files.remove(str(paths.stopped))
        raise


def clear(paths: Paths, *, rest: bool = True) -> dict[str, Any]:
    """Remove the stop state; return it. The proxy sends requests to the engines again.

    The stop had taken them out of the balance, and nothing else puts them back. `rest`: whether the
    removed state was a sleep or stop.
    """
    was = read(paths)
    if was and rest:
        stop_log.record_rest(paths, was)
    for path in (paths.stopped, paths.waking):
        files.remove(str(path))
    publish(paths)
    if was:
        with contextlib.suppress(OSError, HostError):
            draining.set_state(paths, draining.READY)
    return was


def build_state(state: str, why: str, **more: object) -> dict[str, Any]:
    """Return a new stop state: `state` is stopped or asleep, `why` is a short reason."""
    now = time.time()
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    steady = {
        "boot": stop_log.read_boot(),
        "since_boot_s": round(time.clock_gettime(stop_log.CLOCK)),
    }
    return {"state": state, "since": since, "since_s": round(now), "why": why, **steady, **more}


def describe_for_clients(mark: Mapping[str, Any]) -> str:
    """Return the text for clients; it names no users and no machines of the operator."""
    since = f"{mark['since'][:16].replace('T', ' ')} UTC"
    if mark["state"] == ASLEEP:
        return f"The model is asleep since {since}: {mark['why']}."
    return (
        f"The model was stopped on purpose by the operator at {since}; it answers again once the "
        "operator has started it: kimi-prov start."
    )


def publish(paths: Paths) -> None:
    """Write the proxy's answer, and make a running proxy that has the map use it at once."""
    entries = _build_entries(read(paths))
    changed = _write_map(paths, entries)
    if not paths.socket.exists():
        return
    # A proxy that does not answer, or has an earlier configuration, reads the file at its next
    # start.
    with contextlib.suppress(OSError, HostError):
        if changed or haproxy.read_map(paths.socket, str(paths.rest_map)) != entries:
            haproxy.replace_map(paths.socket, str(paths.rest_map), entries)


def ensure(paths: Paths, *, check: bool = False) -> bool:
    """Write the map before a proxy starts that reads it; return True where it was missing."""
    text = "".join(_format_lines(_build_entries(read(paths))))
    missing = not paths.rest_map.exists() or files.read_text(paths.rest_map) != text
    if missing and not check:
        _write_map(paths, _build_entries(read(paths)))
    return missing


def _write_map(paths: Paths, entries: Mapping[str, str]) -> bool:
    text = "".join(_format_lines(entries))
    if paths.rest_map.exists() and files.read_text(paths.rest_map) == text:
        return False
    # Without this directory there is no proxy: on a host of a group that does not serve itself.
    if paths.rest_map.parent.is_dir():
        try:
            files.write_atomic(paths.rest_map, text, 0o640, PROXY_USER)
        except OSError:
            if text or not paths.rest_map.exists():
                raise
            # Written in place if the disk is full: a machine that was started must not look asleep.
            os.truncate(str(paths.rest_map), 0)
    return True


def _build_entries(mark: Mapping[str, Any]) -> dict[str, str]:
    """Return the content of the map: nothing while the machine serves."""
    if not mark:
        return {}
    wakes = mark["state"] == ASLEEP and mark.get("wake") in ("refuse", "hold")
    return {
        **({"wake": str(mark["wake"])} if wakes else {}),
        "state": str(mark["state"]),
        "code": _CODES[mark["state"]],
        "why": describe_for_clients(mark),
        "retry": str(RETRY_S),
    }


def _format_lines(entries: Mapping[str, str]) -> Iterator[str]:
    for key, value in sorted(entries.items()):
        yield f"{key} {value}\n"
