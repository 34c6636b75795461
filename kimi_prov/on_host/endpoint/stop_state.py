"""The mark of a machine that does not serve on purpose, and what the proxy tells clients of it.

The mark is `/var/lib/kimi/state/stopped.json`. While it stands systemd starts no engine, at a boot
or by hand: each engine's unit has a condition on it. What clients are told lies in a map that
HAProxy reads, `/etc/kimi/proxy/rest.map`; it is empty while the machine serves.

Decides: what stops a machine on purpose, and what its clients get as an answer (the answer).
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import PROXY_USER, Paths
from kimi_prov.on_host.endpoint import draining, haproxy, stop_log
from kimi_prov.on_host.system import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STOPPED, ASLEEP = "stopped", "asleep"
# Of a machine that switched itself off: a row of its history, and no mark.
OFF = "off"
# OpenAI's clients wait no longer than a minute for a Retry-After.
RETRY_S = 60
_CODES = {STOPPED: "model_stopped", ASLEEP: "model_asleep"}


def read(paths: Paths) -> dict[str, Any]:
    """Return the mark; empty where the machine is to serve."""
    return files.read_json(paths.stopped)


def describe(found: Mapping[str, Any]) -> str:
    """Say to the operator that a machine does not serve on purpose, since when and by whom."""
    by = found.get("by") or {}
    who = f" by {by['user']}@{by.get('control_host')}" if by.get("user") else ""
    word = "asleep" if found["state"] == ASLEEP else "stopped on purpose"
    return f"{word} since {found['since']}{who}"


def write(paths: Paths, mark: Mapping[str, Any]) -> None:
    """Set the mark and tell the proxy: from now on clients are refused with the reason.

    Raises OSError where it cannot be written; what served is to serve on then.
    """
    was = read(paths)
    files.make_directory(paths.state, 0o700)
    files.write_json(str(paths.stopped), mark, mode=0o600)
    if mark["state"] == STOPPED:
        # Whoever is waking it starts nothing from here on.
        files.remove(str(paths.waking))
    try:
        publish(paths)
    except OSError:
        if not was:
            files.remove(str(paths.stopped))
        raise


def clear(paths: Paths, *, rest: bool = True) -> dict[str, Any]:
    """Take the mark away; returns what it was. The proxy sends requests to the engines again.

    The stop had put them out of the balance, and so they would stay. `rest`: what was, was one.
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
    """Return a mark of now: `state` is stopped or asleep, `why` says it in a few words."""
    now = time.time()
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    steady = {
        "boot": stop_log.read_boot(),
        "since_boot_s": round(time.clock_gettime(stop_log.CLOCK)),
    }
    return {"state": state, "since": since, "since_s": round(now), "why": why, **steady, **more}


def describe_for_clients(mark: Mapping[str, Any]) -> str:
    """Say to a client why nothing answers; users and machines of the operator have no name here."""
    since = f"{mark['since'][:16].replace('T', ' ')} UTC"
    if mark["state"] == ASLEEP:
        return f"The model is asleep since {since}: {mark['why']}."
    return (
        f"The model was stopped on purpose by the operator at {since}; it answers again once the "
        "operator has started it: kimi-prov start."
    )


def publish(paths: Paths) -> None:
    """Make the proxy tell what the mark says, at once where it runs and has the map."""
    entries = _build_entries(read(paths))
    changed = _write_map(paths, entries)
    if not paths.socket.exists():
        return
    # One that does not answer, or that an earlier version configured, reads the file when it does.
    with contextlib.suppress(OSError, HostError):
        if changed or haproxy.read_map(paths.socket, str(paths.rest_map)) != entries:
            haproxy.replace_map(paths.socket, str(paths.rest_map), entries)


def ensure(paths: Paths, *, check: bool = False) -> bool:
    """Have the map in place before a proxy is started that reads it; True where it was not."""
    text = "".join(_format_lines(_build_entries(read(paths))))
    missing = not paths.rest_map.exists() or files.read_text(paths.rest_map) != text
    if missing and not check:
        _write_map(paths, _build_entries(read(paths)))
    return missing


def _write_map(paths: Paths, entries: Mapping[str, str]) -> bool:
    text = "".join(_format_lines(entries))
    if paths.rest_map.exists() and files.read_text(paths.rest_map) == text:
        return False
    # Without its directory there is no proxy: on a host that another serves for.
    if paths.rest_map.parent.is_dir():
        try:
            files.write_atomic(paths.rest_map, text, 0o640, PROXY_USER)
        except OSError:
            if text or not paths.rest_map.exists():
                raise
            # A full disk takes that in place: what has started is not to look asleep.
            os.truncate(str(paths.rest_map), 0)
    return True


def _build_entries(mark: Mapping[str, Any]) -> dict[str, str]:
    """Return what the map holds: nothing while the machine serves."""
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
