"""Quote values for unit files, so that systemd reads them back unchanged."""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
_NAMED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def quote_argument(value: object) -> str:
    """Quote one argument of an Exec line: `%` and `$` would be replaced, other signs split it."""
    return _quote(str(value).replace("%", "%%").replace("$", "$$"))


def quote_assignment(value: object, name: str) -> str:
    """Quote NAME=value for Environment=, where `$` has no meaning."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} is not the name of an environment variable")
    return _quote(f"{name}={value}".replace("%", "%%"))


def _quote(text: str) -> str:
    if "\0" in text:
        raise ValueError("a unit file cannot hold a null character")
    if _PLAIN.fullmatch(text):
        return text
    return f'"{"".join(_escape(character) for character in text)}"'


def _escape(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 32 or code == 127 else character
