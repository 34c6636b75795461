"""`pod accept [--url URL] [--suite full]`: the acceptance checks against the Service, as JSON."""

from __future__ import annotations

import argparse
import socket
import ssl
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kimi_prov.contract import pod
from kimi_prov.contract.errors import EXIT_TRANSIENT, HostError
from kimi_prov.on_host.acceptance import catalogue, expectations
from kimi_prov.on_host.acceptance import run as acceptance
from kimi_prov.on_host.acceptance.catalogue import Exam
from kimi_prov.on_host.acceptance.target import MachineTarget
from kimi_prov.on_host.endpoint import checks, tls
from kimi_prov.on_host.pod.mounts import Mounts
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.service import ProxyPlan

SCHEMA = "kimi-prov/pod-accept/v1"
_CLOSED = "a pod is tested only through its service, and has no unit for code of a model"
_MOUNT = "mount the certificate's Secret at /run/kimi/tls"


def main(argv: list[str]) -> int:
    """Print the checks' results; return 1 where one of them failed."""
    parser = argparse.ArgumentParser(prog="accept")
    parser.add_argument("--url", default=f"https://127.0.0.1:{pod.PORT}")
    parser.add_argument("--suite", choices=catalogue.SUITES, default=catalogue.BASIC)
    options = parser.parse_args(argv)
    mounts = Mounts.from_environment()
    exam = Exam(
        build_subject(mounts, options.url),
        expectations.from_plan(mounts.plan),
        MachineTarget(None, _CLOSED),
    )
    rows = acceptance.run_selection(
        catalogue.Selection(options.suite), exam, lambda names: acceptance.run(exam, names, _report)
    )
    failed = any(row["status"] == "fail" for row in rows)
    answer({"schema": SCHEMA, "ok": not failed, "url": options.url, "checks": rows})
    return EXIT_TRANSIENT if failed else 0


def _report(line: str) -> None:
    """Print the progress on standard error: standard output has only the document."""
    print(line, file=sys.stderr, flush=True)


def build_subject(mounts: Mounts, url: str) -> checks.Subject:
    """Return what the plan promises at that address. Raises HostError for a bad address."""
    scheme, host, port = _split_url(url)
    proxy: ProxyPlan = {**mounts.plan["proxy"], "port": port}
    plan: MachinePlan = {**mounts.plan, "proxy": proxy, "web": None}
    fingerprint: str | None = None
    if scheme == "https":
        mounted = tls.compute_fingerprint(read_text(mounts.locate(pod.TLS_CERTIFICATE)))
        fingerprint = mounted or _read_trusted_fingerprint(host, port)
    return checks.build_subject(plan, host, fingerprint, mounts.api_key())


def _split_url(url: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HostError(f"{url[:200]!r} is not an address: expected https://HOST:PORT")
    return parts.scheme, parts.hostname, port


def _read_trusted_fingerprint(host: str, port: int) -> str:
    """Return the fingerprint of a certificate that the image's authorities have signed."""
    context = ssl.create_default_context()
    try:
        pem = ssl.DER_cert_to_PEM_cert(_read_certificate(context, host, port))
    except OSError as error:
        raise HostError(f"{host}:{port}: {error}", _MOUNT) from None
    return tls.compute_fingerprint(pem)


def _read_certificate(context: ssl.SSLContext, host: str, port: int) -> bytes:
    plain = socket.create_connection((host, port), 30)
    with context.wrap_socket(plain, server_hostname=host) as shown:
        return shown.getpeercert(binary_form=True) or b""
