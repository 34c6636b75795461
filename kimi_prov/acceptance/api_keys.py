"""Read the operator's file of API keys on the control machine; only hashes leave it.

Decides: where the hash of an API key is written (the hash of a key of `kimi_api_keys_file`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import key_rules
from kimi_prov.contract.gateways import KEY_PREFIX
from kimi_prov.errors import UserError
from kimi_prov.on_host.keys.key_map import RESERVED
from kimi_prov.on_host.keys.publish import hash_key

if TYPE_CHECKING:
    from pathlib import Path

NAME = re.compile(r"^[A-Za-z0-9._-]{1,64}$")
HASH = re.compile(r"^[0-9a-fA-F]{64}$")
MIN_KEY_LENGTH = 16


def load_keys(path: Path) -> dict[str, Any]:
    """Return the SHA-256 of each key by name: lines `name:sha256:<hex>` or `name:<key>` of `path`.

    A line with a rule, `name:<key> expires=2027-01-31 tokens_per_day=1000000`, gives {"sha256",
    "ends", "limits"} instead. Raises UserError naming the file and line (never the key) for a
    malformed one.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"kimi_api_keys_file: {path} cannot be read: {getattr(error, 'strerror', 'no text')}",
            fix="name a text file with one `name:sha256:<hex>` or `name:<key>` a line",
        ) from error
    keys: dict[str, Any] = {}
    for line_number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        # A key has no spaces: words after one are a rule, or a mistake in the key.
        key, *words = line.split() if "=" in line else [line.strip()]
        name, value = _parse_line(key, f"{path}:{line_number}")
        if name in keys:
            raise UserError(
                f"{path}:{line_number}: the name {name} is given twice", fix="rename one"
            )
        rule = _parse_rule(words, f"{path}:{line_number}")
        keys[name] = {"sha256": value, **rule.to_json()} if words else value
    return keys


def _parse_rule(words: list[str], where: str) -> key_rules.Rule:
    """Read the words after a key: `expires=DAY` and limits."""
    options = dict(word.partition("=")[::2] for word in words)
    day = options.pop("expires", None)
    try:
        ends = day and datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
        limits = {name: int(limit) for name, limit in options.items()}
        rule = key_rules.read({"ends": int(ends) if ends else None, "limits": limits})
    except ValueError:
        rule = None
    if rule is None or len(rule.limits) + (day is not None) != len(words):
        raise UserError(
            f"{where}: the words after the key are no rule",
            fix="write expires=2027-01-31 and limits as tokens_per_day=1000000, each once; limits "
            f"are {', '.join(key_rules.LIMITS)}",
        )
    return rule


def _parse_line(line: str, where: str) -> tuple[str, str]:
    name, separator, value = line.partition(":")
    if not separator or not NAME.match(name):
        raise UserError(
            f"{where}: this is no key; expected `name:sha256:<hex>` or `name:<key>`",
            fix="write one key a line, its name of letters, digits, `.`, `_` and `-`",
        )
    if name in RESERVED or name.startswith(KEY_PREFIX):
        raise UserError(
            f"{where}: the name {name} is kept for the key that kimi-prov makes itself",
            fix="choose another name; `kimi-prov key` shows and rotates the operator's key",
        )
    if value.startswith("sha256:"):
        value = value.removeprefix("sha256:").strip()
        if not HASH.match(value):
            raise UserError(
                f"{where}: the hash of {name} is not 64 hexadecimal digits",
                fix='make it with: printf %s "$KEY" | sha256sum',
            )
        return name, value.lower()
    if HASH.match(value):
        # If the hash were used as a key, its readers could use the port, but not the key's owner.
        raise UserError(
            f"{where}: {name} has 64 hexadecimal digits, like a hash",
            fix=f"write {name}:sha256:<hex> if they are a hash; else make a key of another form",
        )
    if len(value) < MIN_KEY_LENGTH or any(character.isspace() for character in value):
        raise UserError(
            f"{where}: the key of {name} is shorter than {MIN_KEY_LENGTH} characters or has spaces",
            fix="make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return name, hash_key(value)
