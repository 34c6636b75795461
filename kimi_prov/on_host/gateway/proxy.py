"""Puts in place what the proxy reads beside its configuration, and makes it run exactly that.

What runs is asked of the running proxy itself, not concluded from what a play has just changed:
a run that was killed between a file and its reload is made good by the next one.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.gateway import haproxy, keys, tls
from kimi_prov.on_host.system import units
from kimi_prov.on_host.system.process import (
    PROXY_UNIT,
    PROXY_USER,
    EdgeError,
    Paths,
    answer,
    make_directory,
    read_text,
    write_atomic,
)

if TYPE_CHECKING:
    from pathlib import Path

TAKE_OVER_S = 10.0


def ensure(paths: Paths, wish: dict[str, Any], *, check: bool = False) -> dict[str, Any]:
    """Bring certificate and keys to `wish` {"tls": {...}, "api_keys": {name: sha256}}.

    The running proxy takes new keys over at once; a new certificate waits for `settle`.
    """
    made = make_directory(paths.proxy, 0o750, PROXY_USER, check=check)
    certificate = tls.ensure(paths, wish["tls"], check=check)
    known = keys.ensure(paths, wish["api_keys"], check=check)
    return {
        "changed": made or certificate["changed"] or known["changed"],
        "certificate": certificate,
        "keys": known,
    }


def _digest(*files: Path) -> str:
    whole = hashlib.sha256()
    for file in files:
        whole.update(read_text(file).encode() + b"\0")
    return whole.hexdigest()[:16]


def stamp(paths: Paths) -> str:
    """Name what should run: the unit's content, then that of configuration and certificate."""
    unit = _digest(paths.units / PROXY_UNIT)
    return f"{unit}-{_digest(paths.proxy_config, paths.tls_pem)}"


def _running(paths: Paths) -> str:
    try:
        return haproxy.description(paths.socket)
    except OSError:
        return ""


def action(running: str, wanted: str, *, active: bool) -> str:
    """Decide how to get from what runs to what should: start, restart, reload or nothing."""
    if not active:
        return "start"
    if running.partition("-")[0] != wanted.partition("-")[0]:
        return "restart"
    return "" if running == wanted else "reload"


def settle(paths: Paths, *, check: bool = False) -> dict[str, Any]:
    """Make the proxy run the configuration, certificate and keys that are in place."""
    enabled = units.settle(PROXY_UNIT, check=check)
    wanted = stamp(paths)
    active = units.show(PROXY_UNIT).get(PROXY_UNIT, {}).get("state") == "active"
    verb = action(_running(paths), wanted, active=active)
    if verb and not check:
        text = (
            f"# What is loaded: the proxy tells it when asked.\nglobal\n    description {wanted}\n"
        )
        write_atomic(paths.proxy_stamp, text, 0o640, PROXY_USER)
        units.control(verb, PROXY_UNIT)
        _wait(paths, wanted)
    elif not check and _map_differs(paths):
        keys.publish(paths, keys.parse_map(read_text(paths.key_map)))
        verb = "keys"
    return {"changed": enabled or bool(verb), "did": verb or "nothing"}


def _map_differs(paths: Paths) -> bool:
    wanted = {value: name for name, value in keys.parse_map(read_text(paths.key_map)).items()}
    return haproxy.loaded_map(paths.socket, str(paths.key_map)) != wanted


def _wait(paths: Paths, wanted: str) -> None:
    """Wait for the new worker: a reload returns before it has taken over."""
    until = time.monotonic() + TAKE_OVER_S
    while _running(paths) != wanted:
        if time.monotonic() > until:
            line = units.cause(units.journal(PROXY_UNIT, 40))
            raise EdgeError(f"{PROXY_UNIT} did not take its configuration over: {line}")
        time.sleep(0.1)


def main(argv: list[str]) -> int:
    """`proxy-ensure [--check] < WISH`, or `proxy-ensure run [--check]`; never prints a key."""
    check = "--check" in argv
    try:
        if argv[:1] == ["run"]:
            return answer({"ok": True, **settle(Paths(), check=check)})
        return answer({"ok": True, **ensure(Paths(), json.load(sys.stdin), check=check)})
    except (EdgeError, OSError) as error:
        answer({"ok": False, "error": str(error)})
        return 1
