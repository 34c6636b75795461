"""The proxy through which a site reaches the internet, without the password of its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import paths
from kimi_prov.contract.addresses import strip_login

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan.software import ForwardProxyPlan
    from kimi_prov.planner.settings.parsing import Settings

# The machine's own addresses.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def make_document(settings: Settings) -> ForwardProxyPlan | None:
    """Return the plan's `site.proxy`, None without a proxy. It holds no user and no password.

    `environment` and `apt` are files on the machine that only root reads. They hold the whole URL;
    the role that writes them takes it from the inventory.
    """
    urls = (settings.http_proxy, settings.https_proxy)
    http, https = (strip_login(url)[0] if url else None for url in urls)
    if not http and not https:
        return None
    return {
        "http": http,
        "https": https,
        "no_proxy": list(dict.fromkeys([*settings.no_proxy, *_LOOPBACK])),
        "environment": paths.FORWARD_PROXY,
        "apt": paths.APT_PROXY,
    }
