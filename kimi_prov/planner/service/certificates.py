"""The source of the proxy's certificate, and the requirements of ordering one.

Decides: the certificate.
Applied by: roles/proxy.
Held by: tests/unit/planner/service/test_certificates.py,
  tests/component/on_host/endpoint/test_tls.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import paths

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan.service import AcmePlan, TlsMode, TlsPlan
    from kimi_prov.planner.settings.parsing import Settings

# The port at which a certificate authority checks HTTP-01 (RFC 8555, section 8.3).
_HTTP = 80
_UNPRIVILEGED = 1024
_CHALLENGE_PORT_OFFSET = 8000


def choose_mode(settings: Settings) -> TlsMode:
    """Return `files`, `self-signed` or `acme`."""
    if settings.tls != "auto":
        return settings.tls
    return "files" if settings.tls_cert_file else "self-signed"


def choose_challenge_port(settings: Settings) -> int | None:
    """Return the port on which a challenge is answered, None without such a challenge."""
    on_port = choose_mode(settings) == "acme" and settings.acme_challenge == "http-01"
    return _HTTP if on_port else None


def choose_first_port(settings: Settings) -> int:
    """Return the first port of the loopback for services behind the proxy.

    It is the next after the proxy's. Engines, web UI and ACME client are not root, so that they
    cannot use a port below 1024.
    """
    port = settings.port + 1
    return port if port >= _UNPRIVILEGED else port + _CHALLENGE_PORT_OFFSET


def choose_client_port(settings: Settings, instances: int) -> int:
    """Return the port of the loopback on which the ACME client answers.

    The engines and the web UI have the ports before it.
    """
    return choose_first_port(settings) + instances + 1


def list_ports(settings: Settings, instances: int) -> list[int]:
    """Return the ports that answer a challenge."""
    port = choose_challenge_port(settings)
    return [] if port is None else [port, choose_client_port(settings, instances)]


def make_document(settings: Settings, instances: int) -> TlsPlan:
    """Return the plan's `proxy.tls`; the machine adds its own names.

    `trusted`: whether a browser can trust it without a setting. `acme`: what is ordered where.
    """
    mode = choose_mode(settings)
    return {
        "mode": mode,
        "cert_file": settings.tls_cert_file,
        "key_file": settings.tls_key_file,
        "trusted": mode != "self-signed",
        "acme": _make_acme_section(settings, instances) if mode == "acme" else None,
        "names": [],
    }


def _make_acme_section(settings: Settings, instances: int) -> AcmePlan:
    on_port = settings.acme_challenge == "http-01"
    return {
        "directory_url": settings.acme_directory_url,
        "contact": settings.acme_contact,
        # In the form in which an authority writes them into the certificate.
        "names": list(dict.fromkeys(name.lower() for name in settings.tls_names)),
        "challenge": settings.acme_challenge,
        "port": choose_client_port(settings, instances) if on_port else None,
        "dns_hook": None if on_port else settings.acme_dns_hook,
        "ca_bundle": paths.CA_BUNDLE if settings.ca_bundle else None,
    }
