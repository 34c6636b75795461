"""What an address says of the way to it."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def shows_secrets(url: str) -> bool:
    """Whether what is sent there can be read on the way: http to another machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not _is_loopback(parts.hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
