"""Installs the proxy's certificate and keys, and makes the running proxy use them.

The running proxy itself is queried, whatever the play has just changed: a run that was killed
between a file and its reload is completed by the next one.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import PROXY_USER, Paths
from kimi_prov.on_host.endpoint import draining, haproxy, stop_state, tls
from kimi_prov.on_host.keys import key_map, metadata, metrics_key, publish
from kimi_prov.on_host.proxy import pins
from kimi_prov.on_host.system import file_lock, machine_key, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import make_directory, read_text, remove, write_atomic
from kimi_prov.on_host.system.process import run
from kimi_prov.on_host.usage import counter

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.documents.answers import Applied, ProxyAnswer, PublishedKeys

TAKE_OVER_S = 10.0
# Seconds; another run takes less for a start, a restart or a reload.
OTHER_S = 120.0
# Settings of a host that no client asks.
_REMOVE = "remove"
_NO_KEYS: PublishedKeys = {
    "changed": False,
    "created": [],
    "names": [],
    "removed": [],
    "applied": "unchanged",
}


def ensure(paths: Paths, settings: dict[str, Any], *, check: bool = False) -> ProxyAnswer:
    """Converge certificate and keys to `settings`.

    These are {"tls": {...}, "api_keys": as `keys.ensure` takes them, null where no API is served,
    "page": whether there is a web UI, "metrics": null, or {"sha256": of the given key, else null},
    "gateways": as `keys.ensure` takes them, "hosts": on a gateway, the certificate of each host
    behind it by the name of its server, null where this run did not reach it, "shares_page":
    whether another gateway passes its clients on to the web UI here, "paired": whether there is
    another gateway}. The machine key is made if
    there is none. The running proxy takes new keys at once; a new certificate waits for `converge`.
    `converged`: whether the proxy runs what is in place, which saves a second query.
    """
    made = make_directory(paths.proxy, 0o750, PROXY_USER, check=check)
    if settings["tls"]["mode"] != "acme" and not check:
        # An order under way would replace this certificate by its own.
        remove(str(paths.acme_settings))
    certificate = tls.ensure(paths, settings["tls"], check=check)
    page = bool(settings.get("page"))
    given = settings["api_keys"]
    known = _NO_KEYS
    if given is not None:
        gateways = settings.get("gateways")
        known = publish.ensure(paths, given, page=page, gateways=gateways, check=check)
    else:
        made = make_directory(paths.keys, 0o700, check=check) or made
    own = machine_key.ensure(paths.machine_key, check=check)
    own = metrics_key.ensure(paths, settings.get("metrics"), check=check) or own
    told = stop_state.ensure(paths, check=check)
    pinned = pins.ensure(paths, settings.get("hosts"), check=check)
    shares = bool(settings.get("shares_page"))
    pinned = pins.ensure_web_ui_certificate(paths, shared=shares, check=check) or pinned
    paired = bool(settings.get("paired"))
    pinned = pins.ensure_peers_certificate(paths, paired=paired, check=check) or pinned
    return {
        "changed": made or certificate["changed"] or known["changed"] or own or told or pinned,
        "certificate": certificate,
        "keys": known,
        "converged": is_converged(paths),
    }


def _hash_files(*files: Path) -> str:
    whole = hashlib.sha256()
    for file in files:
        whole.update(read_text(file).encode() + b"\0")
    return whole.hexdigest()[:16]


def compute_digest(paths: Paths) -> str:
    """Return the planned config digest: of the unit, then of what the configuration reads."""
    unit = _hash_files(paths.units / unit_names.PROXY)
    read = [paths.proxy_config, paths.tls_pem, paths.machine_key]
    # Only with metrics: without them the digest stays as it was.
    read += [paths.metrics_key_map] if paths.metrics_key_map.exists() else []
    read += pins.list_files(paths)
    read += [paths.key_limits] if paths.key_limits.exists() else []
    read += [file for file in (paths.page_pem, paths.peers_pem) if file.exists()]
    return f"{unit}-{_hash_files(*read)}"


def _read_running_digest(paths: Paths) -> str:
    try:
        return haproxy.read_description(paths.socket)
    except OSError:
        return ""


def decide_action(running: str, wanted: str, *, active: bool) -> str:
    """Decide how the running proxy is changed: start, restart, reload or nothing."""
    if not active:
        return "start"
    if running.partition("-")[0] != wanted.partition("-")[0]:
        return "restart"
    return "" if running == wanted else "reload"


def is_converged(paths: Paths) -> bool:
    """Return whether `converge` would find nothing to do."""
    unit = units.read_states(unit_names.PROXY).get(unit_names.PROXY, {})
    if not unit.get("enabled") or unit.get("stale") or unit.get("state") != "active":
        return False
    if _read_running_digest(paths) != compute_digest(paths) or _has_other_map(paths):
        return False
    return not _decide_counter_action(paths)


def serves_api(paths: Paths) -> bool:
    """Return whether the configuration in place serves clients, or only metrics."""
    return str(paths.key_map) in read_text(paths.proxy_config)


def _decide_counter_action(paths: Paths) -> str:
    """Return what the counter needs: start, restart, remove, or nothing."""
    name = unit_names.USAGE
    if not (paths.units / name).exists():
        # Its role writes the unit first.
        return ""
    if not serves_api(paths):
        return _REMOVE
    unit = units.read_states(name).get(name, {})
    if unit.get("state") != "active":
        return "start"
    other = counter.read_running_code(paths.usage_socket) != counter.hash_code()
    return "restart" if unit.get("stale") or not unit.get("enabled") or other else ""


def converge(paths: Paths, *, check: bool = False) -> Applied:
    """Make the proxy run the configuration, certificate and keys that are in place.

    One run at a time: an apply and the timer of the certificate would each wait for its own digest.
    """
    if check:
        return _converge(paths, check=True)
    make_directory(paths.state, 0o700)
    try:
        with file_lock.lock(str(paths.proxy_lock), OTHER_S):
            return _converge(paths, check=False)
    except file_lock.TakenError as error:
        raise HostError(
            f"{error} has been changing what {unit_names.PROXY} runs for {OTHER_S:.0f} s",
            "end that process, which hangs, and run `kimi-prov apply` again",
            retryable=True,
        ) from None


def _converge(paths: Paths, *, check: bool) -> Applied:
    # First the counter: it counts from the first request on.
    counting = _decide_counter_action(paths)
    if counting and counting != _REMOVE and not check:
        units.converge(unit_names.USAGE)
        units.control(counting, unit_names.USAGE)
    enabled = units.converge(unit_names.PROXY, check=check)
    wanted = compute_digest(paths)
    active = units.read_states(unit_names.PROXY).get(unit_names.PROXY, {}).get("state") == "active"
    verb = decide_action(_read_running_digest(paths), wanted, active=active)
    if verb and not check:
        text = (
            f"# What is loaded: the proxy tells it when asked.\nglobal\n    description {wanted}\n"
        )
        write_atomic(paths.proxy_stamp, text, 0o640, PROXY_USER)
        out = draining.list_taken_out(paths)
        units.control(verb, unit_names.PROXY)
        _wait_for_worker(paths, wanted)
        for index, state in out.items():
            draining.set_state(paths, state, [index])
    elif not check and _has_other_map(paths):
        publish.publish(paths, key_map.read(paths))
        verb = "keys"
    if counting == _REMOVE and not check:
        _remove_units(paths, unit_names.USAGE)
    changed = enabled or bool(verb) or bool(counting)
    return {"changed": changed, "did": verb or (counting and "counter") or "nothing"}


def _has_other_map(paths: Paths) -> bool:
    if not serves_api(paths):
        return False
    wanted = {value: name for name, value in key_map.read(paths).items()}
    if haproxy.read_map(paths.socket, str(paths.key_map)) != wanted:
        return True
    rules = metadata.format_rules(metadata.read(paths))
    return haproxy.read_map(paths.socket, str(paths.key_rules)) != rules


def _wait_for_worker(paths: Paths, wanted: str) -> None:
    """Wait for the new worker: a reload returns before it has taken over."""
    until = time.monotonic() + TAKE_OVER_S
    while _read_running_digest(paths) != wanted:
        if time.monotonic() > until:
            name = unit_names.PROXY
            what = f"{name} did not take its configuration over"
            raise units.make_error(what, name, units.read_journal(name))
        time.sleep(0.1)


def remove_proxy(paths: Paths, *, check: bool = False) -> Applied:
    """Remove the proxy where nothing uses it any more: its unit and configuration.

    Keys, certificate and counts stay for the time when this host serves again; `destroy` removes
    them.
    """
    if not (paths.units / unit_names.PROXY).exists():
        return {"changed": False, "did": "nothing"}
    if not check:
        files = (paths.proxy_config, paths.proxy_stamp)
        _remove_units(paths, unit_names.USAGE, unit_names.PROXY, files=files)
    return {"changed": True, "did": "remove"}


def _remove_units(paths: Paths, *wanted: str, files: tuple[Path, ...] = ()) -> None:
    """Stop units and remove them and `files`; a run that is killed is completed by the next."""
    names = [name for name in wanted if (paths.units / name).exists()]
    units.run_systemctl("disable", "--now", *names)
    # Units are removed last, in their order: they show the next run that something is left.
    for path in (*files, *(paths.units / name for name in names)):
        remove(str(path))
    units.run_systemctl("daemon-reload")
    run("systemctl", "reset-failed", *names)


def main(argv: list[str]) -> int:
    """`proxy-ensure [--check] < SETTINGS`, `proxy-ensure run|remove [--check]`; prints no key."""
    check = "--check" in argv
    if argv[:1] == ["remove"]:
        return answer({"ok": True, **remove_proxy(Paths(), check=check)})
    if argv[:1] == ["run"]:
        return answer({"ok": True, **converge(Paths(), check=check)})
    return answer({"ok": True, **ensure(Paths(), json.load(sys.stdin), check=check)})
