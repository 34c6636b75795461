"""Checks settings of the certificate that depend on each other."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Any

from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# A DNS name in ASCII (RFC 1123); its first label may be a wildcard (RFC 6125).
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(\*\.)?({_LABEL}\.)*{_LABEL}", re.IGNORECASE)
_MAX_NAME_LENGTH = 253
# Let's Encrypt allows at most so many names in one certificate.
_MAX_NAMES = 100
# It becomes one word of certbot's command line, so no space and no leading hyphen.
_MAIL = re.compile(r"[^@\s-][^@\s]*@[^@\s]+")


def check_certificate(
    values: Mapping[str, Any], host: str, find: Callable[[str], str | None]
) -> None:
    """Raise UserError for the first contradiction.

    `values`: every variable by name; the certificate file and its key were checked before. `find`
    returns "FILE:LINE" of a variable.
    """

    def refuse(name: str, what: str, fix: str) -> UserError:
        return UserError(f"{find(name) or f'host {host}'}: {name}: {what}", fix=fix)

    mode, cert_file = values["kimi_tls"], values["kimi_tls_cert_file"]
    if mode == "files" and cert_file is None:
        raise refuse(
            "kimi_tls",
            "files, and kimi_tls_cert_file is not set",
            "name the certificate and its key in kimi_tls_cert_file and kimi_tls_key_file",
        )
    if mode in ("self-signed", "acme") and cert_file is not None:
        raise refuse(
            "kimi_tls",
            f"{mode}, and kimi_tls_cert_file is set as well",
            "remove kimi_tls_cert_file and kimi_tls_key_file, or set kimi_tls: files",
        )
    if mode == "acme":
        _check_order(values, refuse)


def _check_order(values: Mapping[str, Any], refuse: Callable[[str, str, str], UserError]) -> None:
    names: Sequence[str] = values["kimi_tls_names"]
    if not names:
        raise refuse(
            "kimi_tls",
            "acme, and kimi_tls_names is empty: there is nothing to order a certificate for",
            "list the names by which clients reach the machine, for example  "
            "kimi_tls_names: [kimi.example.com]",
        )
    for name in names:
        _check_name(name, refuse)
    if len(names) > _MAX_NAMES:
        raise refuse(
            "kimi_tls_names",
            f"expected at most {_MAX_NAMES} names with kimi_tls: acme, found {len(names)}",
            "leave names out, or cover them by a wildcard and kimi_acme_challenge: dns-01",
        )
    challenge, hook = values["kimi_acme_challenge"], values["kimi_acme_dns_hook"]
    wildcard = next((name for name in names if name.startswith("*.")), None)
    if challenge == "http-01" and wildcard:
        raise refuse(
            "kimi_tls_names",
            f"no authority proves the wildcard {wildcard} by http-01",
            "set kimi_acme_challenge: dns-01 and kimi_acme_dns_hook, or list the names one by one",
        )
    if challenge == "dns-01" and hook is None:
        raise refuse(
            "kimi_acme_challenge",
            "dns-01, and kimi_acme_dns_hook is not set: nothing would write the record",
            "name the program that writes it, or set kimi_acme_challenge: http-01",
        )
    if challenge == "http-01" and hook is not None:
        raise refuse(
            "kimi_acme_dns_hook",
            "is set, and kimi_acme_challenge is http-01, which calls no program",
            "set kimi_acme_challenge: dns-01, or remove kimi_acme_dns_hook",
        )
    if challenge == "http-01" and values["kimi_port"] == 80:
        raise refuse(
            "kimi_port",
            "80 is where http-01 is answered, without TLS",
            "set kimi_port: 443, or kimi_acme_challenge: dns-01",
        )
    if not values["kimi_acme_directory_url"].startswith("https://"):
        raise refuse(
            "kimi_acme_directory_url",
            "expected https, as ACME asks (RFC 8555, section 6.1)",
            "name the directory's https address; trust a site's own authority by kimi_ca_bundle",
        )
    contact = values["kimi_acme_contact"]
    if contact is not None and not _MAIL.fullmatch(contact):
        raise refuse(
            "kimi_acme_contact",
            f"expected an address of mail, found {contact!r}",
            "write for example  kimi_acme_contact: admin@example.com",
        )


def _check_name(name: str, refuse: Callable[[str, str, str], UserError]) -> None:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if not _NAME.fullmatch(name) or len(name) > _MAX_NAME_LENGTH:
            raise refuse(
                "kimi_tls_names",
                f"expected names of DNS with kimi_tls: acme, found {name!r}",
                "write it in ASCII letters, digits, hyphens and dots (xn--... for others)",
            ) from None
    else:
        raise refuse(
            "kimi_tls_names",
            f"{name} is an address, and kimi_tls: acme orders certificates only for names",
            "list a name that leads to the machine, or set kimi_tls: self-signed",
        )
