"""The API keys on the machine: made here, kept as SHA-256, shown once.

`/etc/kimi/proxy/keys.map` holds one line a key, `<sha256> <name>`, and HAProxy reads it.
`/etc/kimi/keys/operator.new` holds the operator's key in clear until it was shown; while it exists
it is authoritative, so a run that was killed between the two files is corrected by the next run.
With `/etc/kimi/keys/verify.key` this machine tests itself, and with `web.key` the web UI, if any,
calls the engine. Expiry and limits of keys are in `metadata.py`.

Decides: where the hash of an API key is written (to `/etc/kimi/proxy/keys.map`).
Applied by: roles/proxy.
Held by: tests/unit/on_host/keys/test_keys.py, tests/component/on_host/keys/test_keys_published.py,
  tests/component/on_host/proxy/test_proxy.py.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import gateways as gateways_of
from kimi_prov.contract import groups, key_rules, unit_names
from kimi_prov.contract.errors import NOT_APPLIED, HostError
from kimi_prov.contract.paths import PROXY_USER, WEB_ADMIN_NEW, WEB_KEY_NAME, Paths
from kimi_prov.on_host.endpoint import haproxy, tls
from kimi_prov.on_host.keys import key_map, listing, metadata
from kimi_prov.on_host.keys.key_map import OPERATOR, RESERVED, is_own
from kimi_prov.on_host.system import applied_record, kept_state, plans
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import (
    make_directory,
    read_text,
    remove,
    write_atomic,
)
from kimi_prov.on_host.system.process import run
from kimi_prov.on_host.usage import counting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.contract.documents.answers import KeyListAnswer, PublishedKeys

VERIFY = "verify"
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# A key that was made here.
_MADE = re.compile(r"sk-kimi-[A-Za-z0-9_-]{43}")


def make_key() -> str:
    """Return a new key: 256 random bits behind a prefix that secret scanners recognise."""
    return "sk-kimi-" + secrets.token_urlsafe(32)


def may_be_given(name: str) -> bool:
    """Return whether a client's key may have this name."""
    return not is_own(name) and NAME.fullmatch(name) is not None


def hash_key(key: str) -> str:
    """Return the SHA-256 by which a key is kept."""
    return hashlib.sha256(key.encode()).hexdigest()


def describe_keys(keys: dict[str, str]) -> dict[str, Any]:
    """Return what the record of an apply holds of the keys: names, and digests by name."""
    return {"keys": sorted(keys), "key_digests": dict(sorted(keys.items()))}


def _read_made_key(path: Path) -> str:
    """Return a key that was made here; empty where there is none, or only a part of one.

    A part of a key would be valid, and could be guessed.
    """
    key = read_text(path).strip()
    return key if _MADE.fullmatch(key) else ""


def _read_unseen(paths: Paths) -> str:
    """Return the operator's key until it was shown. Raises DamagedStateError."""
    key = _read_made_key(paths.operator_new)
    if not key and paths.operator_new.exists():
        fix = "kimi-prov key INVENTORY --rotate makes a new key for the operator"
        raise kept_state.make_error(paths.operator_new, fix, "it holds no whole key")
    return key


def ensure(
    paths: Paths,
    given: Mapping[str, str | Mapping[str, Any]],
    *,
    page: bool = False,
    gateways: Mapping[str, str | None] | None = None,
    check: bool = False,
) -> PublishedKeys:
    """Converge the keys: the operator's, the machine's own, the added ones, and `given`.

    `given`: by name a SHA-256, or {"sha256", "ends", "limits"} of a key with its own rule. `page`:
    whether there is a web UI, which has its own key. `gateways`: the SHA-256 of each gateway's key
    by name; None where this run did not reach the gateway, whose known key stays. Returns what
    changed, never a key. With `check`, nothing is written.
    """
    made = make_directory(paths.keys, 0o700, check=check)
    old = key_map.read(paths)
    key_metadata = metadata.read(paths)
    wanted = metadata.list_added(key_metadata)
    wanted.update({n: metadata.read_hash(v) for n, v in given.items() if n not in RESERVED})
    created = []
    unseen = _read_unseen(paths)
    if not unseen and OPERATOR not in old:
        unseen = make_key()
        created.append(OPERATOR)
        if not check:
            write_atomic(paths.operator_new, unseen + "\n", 0o600)
    wanted[OPERATOR] = hash_key(unseen) if unseen else old[OPERATOR]
    machines = {VERIFY: paths.verify_key, **({WEB_KEY_NAME: paths.web_key} if page else {})}
    for name, file in machines.items():
        own = _read_made_key(file)
        if not own:
            own = make_key()
            created.append(name)
            if not check:
                write_atomic(file, own + "\n", 0o600)
        wanted[name] = hash_key(own)
    if not page and not check:
        remove(str(paths.web_key))
    known = {name: value or old.get(name) for name, value in (gateways or {}).items()}
    wanted.update({name: value for name, value in known.items() if value})
    new = metadata.converge(key_metadata, wanted, given)
    changed = wanted != old or new != key_metadata or not _has_maps(paths, wanted, new)
    how = "unchanged"
    if changed and not check:
        how = publish(paths, wanted, new)
    return {
        "changed": made or changed or bool(created),
        "created": created,
        "names": sorted(wanted),
        "removed": sorted(set(old) - set(wanted)),
        "applied": how,
    }


def _has_maps(paths: Paths, keys: dict[str, str], key_metadata: metadata.KeyMetadata) -> bool:
    """Return whether both maps of the proxy are these, whole."""
    rules = metadata.render_rules(metadata.format_rules(key_metadata))
    texts = {paths.key_rules: rules, paths.key_map: key_map.render_map(keys)}
    return all(path.is_file() and read_text(path) == text for path, text in texts.items())


def publish(
    paths: Paths, keys: dict[str, str], key_metadata: metadata.KeyMetadata | None = None
) -> str:
    """Write the maps and make the running proxy use them; return how.

    `key_metadata`: the new key metadata, where it changes. The engine is not touched, requests
    under way go on, and a removed key is refused from the next request on.
    """
    if key_metadata is None:
        key_metadata = metadata.read(paths)
    # Before anything changes: a damaged record ends the command here.
    applied_record.read(paths)
    # The rules are written first: no key may be valid without its rule.
    rules = metadata.write(
        paths, {name: key_metadata[name] for name in sorted(key_metadata) if name in keys}
    )
    write_atomic(paths.key_map, key_map.render_map(keys), 0o640, PROXY_USER)
    applied_record.amend(paths, **describe_keys(keys))
    if not paths.socket.exists():
        return "file"
    try:
        haproxy.replace_map(paths.socket, str(paths.key_rules), rules)
        haproxy.replace_map(paths.socket, str(paths.key_map), {v: k for k, v in keys.items()})
    except (HostError, OSError):
        done = run("systemctl", "reload", unit_names.PROXY)
        if done.returncode != 0:
            raise HostError(
                f"the new keys are written but the proxy did not take them over: "
                f"{done.stderr.strip()}",
                f"systemctl restart {unit_names.PROXY}",
            ) from None
        return "reload"
    return "runtime"


def add(paths: Paths, name: str, request: Mapping[str, Any]) -> str:
    """Make a key with a rule and return it; it is stored nowhere. Raises HostError if it exists."""
    keys = _read_keys(paths)
    if name in keys or not may_be_given(name):
        there = f"there is a key {name} already" if name in keys else f"{name!r} is no valid name"
        raise HostError(
            there, f"choose another name, or change its limits: kimi-prov key --set {name}"
        )
    fresh, now = make_key(), int(time.time())
    rule = metadata.apply_request(key_rules.Rule(), request, now)
    entry = metadata.Entry(rule=rule, made=now, digest=hash_key(fresh))
    publish(paths, {**keys, name: hash_key(fresh)}, {**metadata.read(paths), name: entry})
    return fresh


def change(paths: Paths, name: str, request: Mapping[str, Any]) -> None:
    """Change the expiry and the limits of a key, from the next request on."""
    keys = _read_keys(paths)
    _require_key(keys, name)
    if name in key_rules.UNCOUNTED:
        raise HostError(f"the key {name} is the machine's own: it has no limits")
    key_metadata = metadata.read(paths)
    entry = key_metadata.get(name, metadata.Entry())
    rule = metadata.apply_request(entry.rule, request, int(time.time()))
    if rule.ends is not None and name in (OPERATOR, WEB_KEY_NAME):
        raise HostError(
            f"the key {name} does not end: the machine cannot do without",
            "give it limits, or `kimi-prov key INVENTORY --rotate` for a new one of the operator",
        )
    publish(paths, keys, {**key_metadata, name: replace(entry, rule=rule)})


def _read_keys(paths: Paths) -> dict[str, str]:
    keys = key_map.read(paths)
    if not keys:
        raise HostError(*NOT_APPLIED)
    return keys


def _require_key(keys: Mapping[str, str], name: str) -> None:
    if name not in keys:
        known = ", ".join(sorted(keys)) or "none"
        raise HostError(f"there is no key {name}", f"name one of: {known}")


def rotate(paths: Paths) -> None:
    """Make a new key for the operator; the old one is refused from now on."""
    keys = _read_keys(paths)
    fresh = make_key()
    write_atomic(paths.operator_new, fresh + "\n", 0o600)
    publish(paths, {**keys, OPERATOR: hash_key(fresh)})


def revoke(paths: Paths, name: str) -> None:
    """Remove a key: it is refused from the next request on.

    Raises HostError for an unknown name, and for the keys that the machine needs itself. The next
    apply makes a new key for the web UI, and adds the keys of kimi_api_keys_file again.
    """
    keys = key_map.read(paths)
    _require_key(keys, name)
    if name in RESERVED or name.startswith(gateways_of.KEY_PREFIX):
        raise HostError(
            f"the key {name} cannot be taken away",
            "`kimi-prov key INVENTORY --rotate` makes a new one for the operator",
        )
    if name == WEB_KEY_NAME:
        remove(str(paths.web_key))
    publish(paths, {other: value for other, value in keys.items() if other != name})


def show(paths: Paths) -> str | None:
    """Return the operator's key until it was shown, else None.

    The caller calls `forget` once the key arrived.
    """
    unseen = _read_unseen(paths)
    if not unseen:
        return None
    keys = key_map.read(paths)
    if keys.get(OPERATOR) != hash_key(unseen):
        publish(paths, {**keys, OPERATOR: hash_key(unseen)})
    return unseen


def forget(paths: Paths) -> None:
    """Remove the clear text of the key and the password of the web UI: both were shown."""
    for file in (paths.operator_new, paths.web_admin_new):
        remove(str(file))


def main(argv: list[str]) -> int:
    """`keys rotate|show|forget|list|give|take`, `keys remove NAME`, `keys add|set NAME < REQUEST`.

    Only `show` and `add` print a key. A request is {"limits": {name: number or null for none},
    "ends": unix time or null for never, or "ends_in_s"}; what it leaves out stays.

    `give`, and `take < GIVEN`, copy the keys of one gateway to the other: hashes and rules.

    On a host of a group that does not serve itself, the answer is {"elsewhere": the reason}.
    """
    paths = Paths()
    plan = plans.read_plan(paths.plan)
    if not groups.serves_clients(plan):
        return answer(
            {"ok": True, "elsewhere": groups.make_head_only_error(plan, "its keys are").message}
        )
    first = gateways_of.find_key_gateway(plan)
    if first and argv[:1] != ["take"]:
        told = gateways_of.make_first_gateway_error(first, "the keys are").message
        return answer({"ok": True, "elsewhere": told})
    action, *rest = argv or [""]
    if action in _ACTIONS and not rest:
        return answer({"ok": True, **_ACTIONS[action](paths)})
    if action in _NAMED and len(rest) == 1:
        done = _NAMED[action](paths, rest[0])
        uncounted = counting.find_uncounted(plan) if action != "remove" else []
        return answer({"ok": True, **done, "uncounted": uncounted})
    raise HostError(f"usage: keys {'|'.join(_ACTIONS)}, keys {'|'.join(_NAMED)} NAME")


def export_keys(paths: Paths) -> dict[str, Any]:
    """Return what the other gateway needs as well: keys by their hash, and the certificate.

    A certificate that was made here is sent with its private key; others come to each gateway by
    the inventory.
    """
    own = {VERIFY, WEB_KEY_NAME}
    known = key_map.read(paths)
    mode = plans.read_plan(paths.plan).get("proxy", {}).get("tls", {}).get("mode", "self-signed")
    return {
        "hashes": {name: value for name, value in known.items() if name not in own},
        "book": metadata.render(metadata.read(paths)),
        "pem": read_text(paths.tls_pem) if mode == "self-signed" else None,
        "peers_pem": read_text(paths.peers_pem) or None,
    }


def import_keys(paths: Paths, given: Mapping[str, Any]) -> bool:
    """Store what the other gateway gave, and no keys besides but the machine's own.

    Clients use the address that both gateways share, so either one must accept them. A new
    certificate takes effect when the proxy is converged. Returns True for a change.
    """
    old, key_metadata = (
        key_map.read(paths),
        metadata.parse(json.loads(given["book"])),
    )
    wanted = {**given["hashes"], VERIFY: hash_key(_read_made_key(paths.verify_key))}
    # The operator is shown the key of the other gateway.
    remove(str(paths.operator_new))
    other = bool(given.get("pem")) and given["pem"] != read_text(paths.tls_pem)
    if other:
        tls.install(paths, given["pem"])
    between = given.get("peers_pem")
    if between and between != read_text(paths.peers_pem):
        write_atomic(paths.peers_pem, between, 0o640, PROXY_USER)
        other = True
    if wanted == old and key_metadata == metadata.read(paths):
        return other
    publish(paths, wanted, key_metadata)
    return True


def _run_give(paths: Paths) -> dict[str, Any]:
    return export_keys(paths)


def _run_take(paths: Paths) -> dict[str, Any]:
    return {"changed": import_keys(paths, json.load(sys.stdin))}


def _run_rotate(paths: Paths) -> dict[str, Any]:
    rotate(paths)
    return {}


def _run_show(paths: Paths) -> dict[str, Any]:
    return {"key": show(paths), "web_admin": kept_state.read(paths, WEB_ADMIN_NEW) or None}


def _run_forget(paths: Paths) -> dict[str, Any]:
    forget(paths)
    return {}


def _run_list(paths: Paths) -> KeyListAnswer:
    rows = listing.list_keys(paths, key_map.read(paths), metadata.read(paths))
    return {"names": [row["name"] for row in rows], "keys": rows}


def _run_remove(paths: Paths, name: str) -> dict[str, Any]:
    revoke(paths, name)
    return {}


def _run_add(paths: Paths, name: str) -> dict[str, Any]:
    return {"key": add(paths, name, json.load(sys.stdin))}


def _run_set(paths: Paths, name: str) -> dict[str, Any]:
    change(paths, name, json.load(sys.stdin))
    return {}


_ACTIONS = {
    "rotate": _run_rotate,
    "show": _run_show,
    "forget": _run_forget,
    "list": _run_list,
    "give": _run_give,
    "take": _run_take,
}
_NAMED = {"remove": _run_remove, "add": _run_add, "set": _run_set}
