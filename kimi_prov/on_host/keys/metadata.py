"""The metadata of each key, stored beside its hash: creation, expiry, limits.

`/etc/kimi/keys/book.json` holds it; the proxy reads the rules from `/etc/kimi/proxy/rules.map`,
which is written from it. A key that `key --add` made has its hash there too: the inventory does not
name it, and the next apply keeps it.

Decides: what an API key may do: expiry and limits (which key has which).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Union

from kimi_prov.contract import key_rules
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.key_rules import LIMITS, Rule
from kimi_prov.contract.paths import KEY_METADATA, PROXY_USER
from kimi_prov.contract.state_files import KEPT
from kimi_prov.on_host.keys import key_map
from kimi_prov.on_host.system import kept_state
from kimi_prov.on_host.system.files import write_atomic

if TYPE_CHECKING:
    from kimi_prov.contract.paths import Paths

_SCHEMA = KEPT[KEY_METADATA].schema


@dataclass(frozen=True)
class Entry:
    """One key: `made` in seconds since 1970; `digest` of a key that was added on the machine."""

    rule: Rule = field(default_factory=Rule)
    made: int | None = None
    digest: str | None = None


KeyMetadata = dict[str, Entry]
GivenKeys = Mapping[str, Union[str, Mapping[str, Any]]]


def read(paths: Paths) -> KeyMetadata:
    """Return the key metadata; empty where there is none. Raises DamagedStateError.

    A lost file is read from the maps: no key is removed and no limit is lifted with it.
    """
    document = kept_state.read(paths, KEY_METADATA)
    if not document and paths.key_rules.exists():
        return rebuild(paths)
    try:
        return parse(document)
    except HostError as error:
        fix = KEPT[KEY_METADATA].fix
        raise kept_state.make_error(paths.key_book, fix, error.message) from error


def rebuild(paths: Paths) -> KeyMetadata:
    """Return what the maps of the proxy hold of the metadata: hash and rule of each key.

    They do not tell the keys of the inventory from those that were added: the next apply does, for
    the keys that the inventory names.
    """
    rules = key_map.read_rules(paths.key_rules)
    entries = {
        name: Entry(rules.get(name, Rule()), digest=None if key_map.is_own(name) else digest)
        for name, digest in key_map.read(paths).items()
    }
    return {name: entry for name, entry in entries.items() if entry != Entry()}


def parse(document: Mapping[str, Any]) -> KeyMetadata:
    """Parse key metadata. Raises HostError for another form."""
    rows = document.get("keys") if document else {}
    if not isinstance(rows, Mapping) or (document and document.get("schema") != _SCHEMA):
        raise HostError("it is of another version")
    try:
        return {
            str(name): Entry(key_rules.read(row), row.get("made"), row.get("digest"))
            for name, row in rows.items()
        }
    except (ValueError, AttributeError) as error:
        raise HostError(str(error)) from error


def render(key_metadata: KeyMetadata) -> str:
    """Return the key metadata as the text of its file."""
    rows = {
        name: {**entry.rule.to_json(), "made": entry.made, "digest": entry.digest}
        for name, entry in sorted(key_metadata.items())
    }
    return json.dumps({"schema": _SCHEMA, "keys": rows}, indent=1) + "\n"


def write(paths: Paths, key_metadata: KeyMetadata) -> dict[str, str]:
    """Write the key metadata and the map of the rules; return the rules by name."""
    write_atomic(paths.key_book, render(key_metadata), 0o600)
    found = format_rules(key_metadata)
    write_atomic(paths.key_rules, render_rules(found), 0o640, PROXY_USER)
    return found


def render_rules(rules: Mapping[str, str]) -> str:
    """Return the map file of the rules for HAProxy."""
    return "".join(f"{name} {rule}\n" for name, rule in rules.items())


def format_rules(key_metadata: KeyMetadata) -> dict[str, str]:
    """Return the rules that the proxy enforces for each key, by name."""
    return {name: e.rule.text() for name, e in sorted(key_metadata.items()) if not e.rule.empty}


def list_added(key_metadata: KeyMetadata) -> dict[str, str]:
    """Return name and hash of the keys that were added on the machine."""
    return {name: entry.digest for name, entry in key_metadata.items() if entry.digest}


def read_hash(given: str | Mapping[str, Any]) -> str:
    """Return the hash of a key of the inventory."""
    return given if isinstance(given, str) else str(given["sha256"])


def converge(key_metadata: KeyMetadata, keys: Mapping[str, str], given: GivenKeys) -> KeyMetadata:
    """Return the metadata of these keys: a rule of the inventory counts, else the present one."""
    found = {}
    for name in sorted(keys):
        entry, request = key_metadata.get(name, Entry()), given.get(name)
        if request is not None:
            entry = replace(entry, digest=None)
        if isinstance(request, Mapping):
            entry = replace(entry, rule=key_rules.read(request))
        found[name] = entry
    return {name: entry for name, entry in found.items() if entry != Entry()}


def apply_request(rule: Rule, request: Mapping[str, Any], now: int) -> Rule:
    """Return a rule changed by a request. Raises HostError for a request that makes no sense."""
    limits = {**rule.limits, **(request.get("limits") or {})}
    limits = {name: number for name, number in limits.items() if number is not None}
    ends = request.get("ends", rule.ends)
    if "ends_in_s" in request:
        ends = now + int(request["ends_in_s"])
    try:
        return key_rules.read({"ends": ends, "limits": limits})
    except ValueError as error:
        raise HostError(f"no such rule: {error}", f"limits are {', '.join(LIMITS)}") from error
