"""The secrets on this machine, which are masked in everything that leaves it.

The control machine masks what it knows, and whatever looks like a key; it never saw these.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths as layout
from kimi_prov.on_host.system import machine_key

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.paths import Paths

MASK = "********"
_MIN_LENGTH = 6
_MAX_BYTES = 1 << 16
# Files whose lines are secrets, or NAME=secret.
_FILES = (
    layout.OPERATOR_NEW,
    layout.VERIFY_KEY,
    layout.WEB_KEY,
    layout.WEB_ADMIN_NEW,
    layout.HUB_TOKEN,
    layout.BUCKET_CREDENTIALS,
    layout.WEB_SECRETS,
    layout.WEB_ADMIN,
)
_PROXIES = (layout.FORWARD_PROXY, layout.APT_PROXY)
_LOGIN = re.compile(r"://[^/\s:@'\"]+:([^/\s@'\"]+)@")
# Variables in such files that are no secrets (ports, addresses, switches).
_OPEN = re.compile(r"(?:true|false|https?://\S+|/\S*|[\d.:]+)\Z", re.I)


class Secrets:
    """The secrets of this machine, the longest first."""

    def __init__(self, paths: Paths) -> None:
        found = {machine_key.read(paths.machine_key)}
        for name in _FILES:
            for line in _read_text(paths.locate(name)).splitlines():
                value = line.strip().partition("=")[2] or line.strip()
                found |= {part.strip("'\" ") for part in (value, line.strip().rpartition(":")[2])}
        for name in _PROXIES:
            found |= set(_LOGIN.findall(_read_text(paths.locate(name))))
        kept = {value for value in found if len(value) >= _MIN_LENGTH and not _OPEN.match(value)}
        self._values: list[str] = sorted(kept, key=len, reverse=True)

    def mask(self, value: Any) -> Any:  # noqa: ANN401  (whatever JSON can hold)
        """Return text, lists and mappings without these secrets."""
        if isinstance(value, str):
            for secret in self._values:
                if secret in value:
                    value = value.replace(secret, MASK)
            return value
        if isinstance(value, dict):
            return {self.mask(key): self.mask(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.mask(inner) for inner in value]
        return value


def _read_text(path: Path) -> str:
    """Return a small file's text, empty where it cannot be read; never blocks."""
    try:
        descriptor = os.open(str(path), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
