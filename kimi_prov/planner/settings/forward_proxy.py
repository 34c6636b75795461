"""The proxy by which a site reaches the world: who uses it, and what of its URL may be shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths

if TYPE_CHECKING:
    from kimi_prov.planner.settings.parsing import Settings

# The machine's own addresses.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# scheme://LOGIN@rest, LOGIN of what may stand there unescaped (RFC 3986).
_WITH_LOGIN = re.compile(
    r"([a-z]+://)([A-Za-z0-9._~!$&'()*+,;=%-]*(?::[A-Za-z0-9._~!$&'()*+,;=:%-]*)?@)(.*)"
)


def split(url: str) -> tuple[str, str]:
    """Return the URL without `user:password@`, and that part; empty where there is none."""
    found = _WITH_LOGIN.fullmatch(url)
    return (f"{found[1]}{found[3]}", found[2]) if found else (url, "")


def document(settings: Settings) -> dict[str, Any] | None:
    """Give the plan's `site.proxy`, None without a proxy. No user and no password is in it.

    `environment` and `apt`: files on the machine that root alone reads. They have the whole URL;
    their role writes it from the inventory.
    """
    given = {"http": settings.http_proxy, "https": settings.https_proxy}
    shown = {name: split(url)[0] if url else None for name, url in given.items()}
    if not any(shown.values()):
        return None
    return {
        **shown,
        "no_proxy": list(dict.fromkeys([*settings.no_proxy, *_LOOPBACK])),
        "environment": paths.FORWARD_PROXY,
        "apt": paths.APT_PROXY,
    }
