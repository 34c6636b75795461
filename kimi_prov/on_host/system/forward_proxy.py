"""The site's forward proxy, as the role host_base has written it down for root."""

from __future__ import annotations

from pathlib import Path

from kimi_prov.contract import paths
from kimi_prov.on_host.system.files import read_text


def read_variables(root: str = "/") -> dict[str, str]:
    """Return the variables that name the proxy and its exceptions; empty where there is none.

    apt has its own file: with the variables it would request https addresses through the http
    proxy.
    """
    found = {}
    for line in read_text(Path(paths.join_root(root, paths.FORWARD_PROXY))).splitlines():
        name, mark, value = line.partition("=")
        if mark and name.endswith("_proxy"):
            found[name] = value.strip('"')
    if found:
        found["APT_CONFIG"] = paths.APT_PROXY
    return found
