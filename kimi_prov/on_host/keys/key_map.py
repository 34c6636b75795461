"""The maps of the proxy: the hash of each API key, `<sha256> <name>`, and the rule of each name.

A damaged map is not an empty one. The hashes are in the record of the last apply too, so a damaged
map of them is read from there: no client loses its key.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov.contract import gateways, key_rules
from kimi_prov.contract.paths import WEB_KEY_NAME
from kimi_prov.on_host.system import applied_record, kept_state

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.paths import Paths

OPERATOR = "operator"
# `watchdog` is not reserved yet: a user's key may have that name.
RESERVED = (OPERATOR, *key_rules.UNCOUNTED)
_MAP_LINE = re.compile(r"^([0-9a-f]{64}) ([A-Za-z0-9._-]{1,64})$")
_FIX = (
    "kimi-prov restore INVENTORY FILE brings the keys back; without a backup: sudo rm {path} on "
    "this machine, then kimi-prov apply INVENTORY, which makes a new key for the operator"
)
_RULES_FIX = (
    "sudo rm {path} on this machine, then set the limits of the keys again with kimi-prov key "
    "INVENTORY --set NAME"
)


def is_own(name: str) -> bool:
    """Return whether a key of this name is made by kimi-prov for itself, or for the operator."""
    return name in (*RESERVED, WEB_KEY_NAME) or name.startswith(gateways.KEY_PREFIX)


def parse_map(text: str) -> dict[str, str]:
    """Return the SHA-256 of each name; lines of another form are left out."""
    matches = (_MAP_LINE.match(line.strip()) for line in text.splitlines())
    return {match.group(2): match.group(1) for match in matches if match}


def render_map(keys: dict[str, str]) -> str:
    """Return the map file for HAProxy, in a stable order."""
    lines = [f"{value} {name}" for name, value in sorted(keys.items())]
    return "\n".join(lines) + "\n"


def read(paths: Paths) -> dict[str, str]:
    """Return the hash of each key by its name; empty where there is no map.

    Raises DamagedStateError where neither the map nor the record of the last apply has them.
    """
    try:
        text = kept_state.read_regular(paths.key_map)
    except (OSError, ValueError) as error:
        return _read_recorded(paths, str(error))
    if text is None:
        return {}
    keys = parse_map(text)
    if not text.endswith("\n") or len(keys) != len(text.splitlines()):
        return _read_recorded(paths, "it has lines without the hash of a key, or none")
    if OPERATOR not in keys and OPERATOR in _read_digests(paths):
        return _read_recorded(paths, f"it has no key {OPERATOR}")
    return keys


def _read_recorded(paths: Paths, reason: str) -> dict[str, str]:
    """Return the hashes in the record of the last apply, in place of a damaged map."""
    damaged = kept_state.make_error(paths.key_map, _FIX, reason)
    keys = _read_digests(paths)
    if OPERATOR not in keys:
        raise damaged
    return keys


def _read_digests(paths: Paths) -> dict[str, str]:
    keys = applied_record.read(paths).get("key_digests")
    return {str(name): str(value) for name, value in keys.items()} if keys else {}


def read_rules(path: Path) -> dict[str, key_rules.Rule]:
    """Return the rule of each key that has one. Raises DamagedStateError."""
    try:
        text = kept_state.read_regular(path) or ""
    except (OSError, ValueError) as error:
        raise kept_state.make_error(path, _RULES_FIX, str(error)) from error
    rules = {}
    for line in text.splitlines(keepends=True):
        name, _, rule = line.rstrip("\n").partition(" ")
        rules[name] = key_rules.parse(rule)
        if rules[name].empty or not line.endswith("\n"):
            raise kept_state.make_error(path, _RULES_FIX, "it has a line that is no rule")
    return rules
