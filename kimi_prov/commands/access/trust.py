"""Whether clients trust a server's certificate: by which authority, and for which name.

Decides: what `connect` says to clients, and its snippets (the certificate).
"""

from __future__ import annotations

import ipaddress
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov import documents
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.system import process

if TYPE_CHECKING:
    from collections.abc import Sequence

_WHY = re.compile(r"^error \d+ at \d+ depth lookup: ?(.+)$", re.MULTILINE)
_PEM_BYTES = 8 << 20


def read_authority(file: Path) -> str:
    """Return the certificates of a file of authorities. Raises UserError where it holds none."""
    fix = "name a file with the authority's certificate in PEM form"
    found = tls.extract_certificates(
        documents.read_document(file, what="a certificate", limit=_PEM_BYTES, fix=fix).text
    )
    if not found:
        raise UserError(f"--ca {file}: it holds no certificate in PEM form", fix=fix)
    return found


def is_covered(names: Sequence[str], host: str) -> bool:
    """Whether a certificate with these names is for a host: a name, or an address. Pure.

    As in RFC 6125, `*.` stands for one label.
    """
    address = _parse_address(host)
    if address is not None:
        return any(_parse_address(name) == address for name in names)
    wanted = host.lower().rstrip(".")
    wild = f"*.{wanted.partition('.')[2]}" if wanted.count(".") > 1 else wanted
    return any(name.lower().rstrip(".") in (wanted, wild) for name in names)


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def explain_refusal(chain: str, host: str, authorities: str | None) -> str:
    """Return why a client would refuse a certificate for a host; "" if it accepts it.

    `chain`: the server's certificates, its own first. `authorities`: the only ones that the client
    trusts, None for those of this computer. openssl decides, as in most clients.
    """
    leaf, *between = tls.CERTIFICATE.findall(chain)
    named = "-verify_ip" if _parse_address(host) else "-verify_hostname"
    with tempfile.TemporaryDirectory(prefix="kimi-trust-") as folder:
        own, rest = Path(folder, "own.pem"), Path(folder, "rest.pem")
        own.write_text(leaf + "\n")
        rest.write_text("".join(between) or "\n")
        words = ["openssl", "verify", "-purpose", "sslserver", named, host]
        if authorities is not None:
            trusted = Path(folder, "trusted.pem")
            trusted.write_text(authorities)
            words += ["-no-CApath", "-no-CAstore", "-CAfile", str(trusted)]
        if between:
            words += ["-untrusted", str(rest)]
        done = process.run(*words, str(own))
    if done.returncode == 0:
        return ""
    if done.returncode in (process.NOT_FOUND, process.NOT_RUNNABLE):
        raise UserError(
            "openssl is not on this machine", fix="install it", exit_code=ExitCode.FAILED
        )
    why = _WHY.findall(done.stderr + done.stdout)
    return (
        clean_text.clean_line("; ".join(dict.fromkeys(why)) or done.stderr)[:300]
        or "it gave no reason"
    )
