"""The control machine's settings for package indexes, as `kimi_*` variables.

A lab host uses the same mirror and the same inspecting proxy as the control machine, by the
variables that a site uses for its servers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kimi_prov.lab.shell import make_tool_environment
from kimi_prov.packaging import apt_sources

if TYPE_CHECKING:
    from collections.abc import Mapping

# Options that decide whether apt reaches and trusts the archive; others are left out.
_APT_OPTION = re.compile(
    r'^(Acquire::(?:Check-Valid-Until|Check-Date|https?::Proxy|ForceIPv[46])) "(.*)";$'
)


@dataclass(frozen=True)
class AptSettings:
    """Archive addresses and access options of the control machine's `apt-get`.

    An address is None where its sources name none of Debian's archives.
    """

    mirror: str | None = None
    security_mirror: str | None = None
    options: tuple[str, ...] = ()


def read_apt_settings() -> AptSettings:
    """Read the control machine's apt sources and options."""
    mirror, security = apt_sources.find_archives(apt_sources.read_own(), "debian")
    return AptSettings(mirror, security, parse_apt_options(_read_output(["apt-config", "dump"])))


def parse_apt_options(dump: str) -> tuple[str, ...]:
    """Return the access options of the output of `apt-config dump`."""
    matches = [_APT_OPTION.match(line.strip()) for line in dump.splitlines()]
    return tuple(f'{m[1]} "{m[2]}"' for m in matches if m and m[2])


def make_product_variables(
    environment: Mapping[str, str], pip_config: Mapping[str, str], apt: AptSettings
) -> dict[str, object]:
    """Return the `kimi_*` variables of these settings for the hosts, without unset ones.

    Environment variables win over pip's configuration file, as they do for pip. Addresses of the
    control machine's own disk (file:) are useless on a host and are left out; the find-links
    folder is kept, because the product copies the wheels that its lock names. An archive over http
    is among the image's own sources already; one over TLS also wants the bundle, so it is named.
    """
    pip = {**pip_config}
    for variable, value in environment.items():
        if variable.startswith("PIP_") and value:
            pip[variable[4:].lower().replace("_", "-")] = value
    variables: dict[str, object] = {}
    index = pip.get("index-url", "")
    if _is_web(index):
        variables["kimi_pip_index_url"] = index
    extra = [url for url in pip.get("extra-index-url", "").split() if _is_web(url)]
    if extra:
        variables["kimi_pip_extra_index_urls"] = extra
    links = pip.get("find-links", "").split()
    if links:
        variables["kimi_pip_find_links"] = links[0].removeprefix("file://")
    bundle = next(
        (
            value
            for value in (
                environment.get("SSL_CERT_FILE"),
                pip.get("cert"),
                environment.get("REQUESTS_CA_BUNDLE"),
            )
            if value and Path(value).is_file()
        ),
        None,
    )
    if bundle:
        variables["kimi_ca_bundle"] = bundle
    if apt.mirror and urlsplit(apt.mirror).scheme == "https":
        variables["kimi_apt_mirror"] = apt.mirror
    return variables


def detect_variables() -> dict[str, object]:
    """Return the product variables of this machine as it is now."""
    listing = _read_output([sys.executable, "-m", "pip", "config", "list"])
    if not listing:
        listing = _read_output(["pip3", "config", "list"])
    return make_product_variables(os.environ, parse_pip_config(listing), read_apt_settings())


def parse_pip_config(listing: str) -> dict[str, str]:
    """Read `pip config list`: `global.cert='/x'`, later sections over earlier ones."""
    options: dict[str, str] = {}
    for line in listing.splitlines():
        match = re.match(r"^(?:global|install|user|site)\.([a-z-]+)=(['\"])(.*)\2$", line.strip())
        if match:
            options[match[1]] = match[3].replace("\\n", " ")
    return options


def find_resolvers(texts: list[str]) -> list[str]:
    """Return the name servers of the first resolv.conf with any that is not on loopback."""
    for text in texts:
        servers = re.findall(r"^nameserver\s+(\S+)", text, re.MULTILINE)
        reachable = [s for s in servers if not s.startswith("127.") and s != "::1"]
        if reachable:
            return reachable
    return []


def find_control_resolvers() -> list[str]:
    """Name servers of the control machine, those behind a local stub included."""
    paths = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
    return find_resolvers([p.read_text(errors="replace") for p in paths if p.is_file()])


def _is_web(url: str) -> bool:
    return urlsplit(url).scheme in {"http", "https"}


def _read_output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env=make_tool_environment(),
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
