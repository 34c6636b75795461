"""`metrics-door`: what a monitoring host needs to scrape this one.

Its certificate, a name in it, and the key, where it was made here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import certificate
from kimi_prov.on_host.keys import metrics_key
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from kimi_prov.contract.documents.answers import ScrapeTargetAnswer


def read(paths: Paths) -> ScrapeTargetAnswer:
    """Return {"certificate", "server_name", "key"}; raises HostError where there is no proxy."""
    pem = read_text(paths.tls_crt)
    found = certificate.read(pem)
    if found is None:
        raise HostError(
            f"{paths.tls_crt}: the proxy has no certificate yet", "run `kimi-prov apply`"
        )
    names = sorted(found.names, key=lambda name: name[:1].isdigit() or ":" in name)
    # A wildcard is not a name that a host could have.
    plain = [name for name in names if "*" not in name] or [n.replace("*", "x") for n in names]
    if not plain:
        raise HostError(
            f"{paths.tls_crt}: the certificate has no subjectAltName, so no client can check it",
            "take a certificate with names",
        )
    return {"certificate": pem, "server_name": plain[0], "key": metrics_key.read(paths)}


def main(argv: list[str]) -> int:
    """`metrics-door`: print one JSON object, with the key in it."""
    del argv
    return answer({"ok": True, **read(Paths())})
