"""Certificates and keys by which gateways and the hosts behind them know each other.

For each host a gateway trusts exactly that host's certificate, and no authority; a host accepts the
gateway by the hash of its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.gateways import PEERS_NAME, WEB_UI_NAME
from kimi_prov.contract.paths import PROXY_USER, Paths
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.keys import publish
from kimi_prov.on_host.system import machine_key
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import make_directory, read_text, remove, write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.contract.documents.answers import PinsAnswer

_END = ".crt"


def list_files(paths: Paths) -> list[Path]:
    """Return the stored certificates of hosts, by name."""
    return sorted(paths.hosts.glob(f"*{_END}"))


def ensure(paths: Paths, hosts: Mapping[str, str | None] | None, *, check: bool = False) -> bool:
    """Store the certificate of each host by the name of its server; return True where one changed.

    None for a host that this run did not reach: its known certificate stays. Others are removed.
    """
    changed = False
    for path in list_files(paths):
        if path.name[: -len(_END)] not in (hosts or {}):
            changed = True
            if not check:
                path.unlink()
    if not hosts:
        return changed
    if not check:
        make_directory(paths.hosts, 0o750, PROXY_USER)
    for name, pem in hosts.items():
        changed = save_certificate(paths, name, pem, check=check) or changed
    return changed


def save_certificate(paths: Paths, name: str, pem: str | None, *, check: bool = False) -> bool:
    """Store the certificate of one host, where it is given; return True where it differs."""
    place, public = paths.hosts / f"{name}{_END}", tls.extract_certificates(pem or "")
    if not public or read_text(place) == public:
        return False
    if not check:
        write_atomic(place, public, 0o644)
    return True


def ensure_web_ui_certificate(paths: Paths, *, shared: bool, check: bool = False) -> bool:
    """Store the certificate for the other gateway where the web UI is `shared` with it, else none.

    Returns True where that changes. The clients' own certificate may be ordered, and change by
    itself.
    """
    have = read_text(paths.page_pem)
    if bool(have) == shared and (not shared or tls.is_lasting(have)):
        return False
    if check:
        return True
    if shared:
        pem = tls.make_self_signed([WEB_UI_NAME], loopback=False)
        write_atomic(paths.page_pem, pem, 0o640, PROXY_USER)
    else:
        remove(str(paths.page_pem))
    return True


def ensure_peers_certificate(paths: Paths, *, paired: bool, check: bool = False) -> bool:
    """Store a certificate for two gateways that are `paired`, else none; True where that changes.

    The first gateway gives its own to the other one, with the keys: both show it and accept it.
    """
    have = read_text(paths.peers_pem)
    if bool(have) == paired and (not paired or tls.is_lasting(have)):
        return False
    if check:
        return True
    if paired:
        usage = "serverAuth,clientAuth"
        pem = tls.make_self_signed([PEERS_NAME], loopback=False, usage=usage)
        write_atomic(paths.peers_pem, pem, 0o640, PROXY_USER)
    else:
        remove(str(paths.peers_pem))
    return True


def read_pins(paths: Paths) -> PinsAnswer:
    """Return {"certificate", "key_sha256", "page_certificate": null without a shared web UI}.

    Raises HostError where there is no proxy yet.
    """
    pem = read_text(paths.tls_crt)
    if not pem:
        raise HostError(
            f"{paths.tls_crt}: the proxy has no certificate yet", "run `kimi-prov apply`"
        )
    return {
        "certificate": pem,
        "key_sha256": publish.hash_key(machine_key.read(paths.machine_key)),
        "page_certificate": tls.extract_certificates(read_text(paths.page_pem)) or None,
    }


def main(argv: list[str]) -> int:
    """`gateway-door`: print one JSON object without secrets."""
    del argv
    return answer({"ok": True, **read_pins(Paths())})
