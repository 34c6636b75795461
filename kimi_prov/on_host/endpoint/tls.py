"""The proxy's certificate: the operator's own, an issued one, or a self-signed one.

Decides: the certificate (its file).
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import tempfile
from pathlib import Path
from typing import Any

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import PROXY_USER, Paths
from kimi_prov.on_host.system import applied_record, kept_state
from kimi_prov.on_host.system.files import read_text, write_atomic
from kimi_prov.on_host.system.process import run

DAYS = 3650
RENEW_SECONDS = 60 * 86400
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
_RESTORE = "kimi-prov restore INVENTORY FILE"
_DAMAGED_FIX = (
    f"{_RESTORE} brings it back; without a backup: sudo rm {{path}} on this machine, then "
    "kimi-prov apply INVENTORY makes a new one: give it to all clients that pin the old one "
    "(kimi-prov connect INVENTORY)"
)
ADDRESS = re.compile(r"^[0-9.]+$|:")


def format_alternative_names(names: list[str], *, loopback: bool = True) -> str:
    """Return the subjectAltName value for these names, and for those of the loopback."""
    own = ["localhost", "127.0.0.1", "::1"] if loopback else []
    wanted = list(dict.fromkeys([*names, *own]))
    return ",".join(("IP:" if ADDRESS.search(name) else "DNS:") + name for name in wanted)


def extract_certificates(pem: str) -> str:
    """Return the certificates of a PEM file, without the private key."""
    return "".join(found.group(0).rstrip("\n") + "\n" for found in CERTIFICATE.finditer(pem))


def compute_fingerprint(pem: str) -> str:
    """Return the SHA-256 (hex) of the first certificate in a PEM text, empty without one."""
    found = CERTIFICATE.search(pem)
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(found.group(0))).hexdigest() if found else ""


def make_self_signed(names: list[str], *, loopback: bool = True, usage: str = "serverAuth") -> str:
    """Return a new P-256 key and a certificate for `names`, as one PEM text.

    It is no authority: clients on rustls (Codex, goose, Zed) refuse one that a server shows as its
    own, and the others need none.
    """
    common = next((name for name in names if not ADDRESS.search(name)), "kimi")[:64]
    with tempfile.TemporaryDirectory(prefix="kimi-tls-") as directory:
        key, certificate = Path(directory, "key"), Path(directory, "crt")
        done = run(
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-sha256", "-days", str(DAYS), "-subj", "/CN=" + common,
            "-addext", "subjectAltName=" + format_alternative_names(names, loopback=loopback),
            "-addext", f"extendedKeyUsage={usage}",
            "-addext", "basicConstraints=critical,CA:FALSE",
            "-keyout", str(key), "-out", str(certificate),
        )  # fmt: skip
        if done.returncode != 0:
            raise HostError("openssl could not make a certificate: " + done.stderr.strip()[-300:])
        return certificate.read_text() + key.read_text()


def is_valid_for(pem: str, names: list[str]) -> bool:
    """Return whether a self-signed certificate covers these names and stays valid for a while."""
    if not is_lasting(pem):
        return False
    shown = run("openssl", "x509", "-noout", "-ext", "subjectAltName", stdin=pem)
    if shown.returncode != 0:
        return False
    listed = shown.stdout.rpartition("subjectAltName")[2] or shown.stdout
    have = {
        part.strip().replace("IP Address:", "IP:") for part in listed.splitlines()[-1].split(",")
    }
    wanted = set(format_alternative_names(names).split(","))
    return {_normalize_address(name) for name in wanted} == {
        _normalize_address(name) for name in have
    }


def is_lasting(pem: str) -> bool:
    """Return whether there is a certificate that stays valid for a while."""
    if not pem:
        return False
    asked = run("openssl", "x509", "-noout", "-checkend", str(RENEW_SECONDS), stdin=pem)
    return asked.returncode == 0


def _normalize_address(name: str) -> str:
    """Normalise an address: openssl writes IPv6 in full and in capitals."""
    kind, _, value = name.partition(":")
    if kind == "IP" and ":" in value:
        import ipaddress  # noqa: PLC0415 - only here, and the probe starts faster without

        return "IP:" + ipaddress.IPv6Address(value).compressed
    return name


def read_given(certificate: str, key: str) -> str:
    """Return the operator's certificate chain and key as one PEM text, if they match.

    Raises HostError naming which of the two files is wrong.
    """
    if not extract_certificates(certificate):
        raise HostError("kimi_tls_cert_file holds no certificate in PEM form")
    pem = extract_certificates(certificate) + key.strip() + "\n"
    with tempfile.NamedTemporaryFile("w", prefix="kimi-tls-") as stream:
        os.chmod(stream.name, 0o600)
        stream.write(pem)
        stream.flush()
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(stream.name, password="")
        except ssl.SSLError as error:
            raise HostError(
                "kimi_tls_key_file does not belong to the certificate in kimi_tls_cert_file, "
                "or is encrypted: %s" % (error.reason or error)
            ) from None
    return pem


def ensure(paths: Paths, settings: dict[str, Any], *, check: bool = False) -> dict[str, Any]:
    """Converge the certificate to {mode, names, cert_pem, key_pem}; return whether it changed.

    With mode `acme` a self-signed certificate serves until the first one is issued. `warning`,
    where the certificate is lost that clients may pin: what they have to do. Raises
    DamagedStateError where it is damaged and nothing else can take its place.
    """
    old, lost = read_text(paths.tls_pem), ""
    if settings["mode"] == "files":
        pem = read_given(settings["cert_pem"], settings["key_pem"])
    elif settings["mode"] == "acme" and is_pair(issued := read_text(paths.acme_pem)):
        pem = issued
    elif paths.tls_pem.exists() and not is_pair(old):
        problem = "it is no certificate with its key"
        raise kept_state.make_error(paths.tls_pem, _DAMAGED_FIX, problem)
    elif is_valid_for(old, settings["names"]):
        pem = old
    else:
        lost = "" if old else _describe_loss(paths)
        if check:
            return _report(changed=True, pem=old, lost=lost)
        pem = make_self_signed(settings["names"])
    changed = pem != old or read_text(paths.tls_crt) != extract_certificates(pem)
    if changed and not check:
        install(paths, pem)
    return _report(changed=changed, pem=pem, lost=lost)


def _report(*, changed: bool, pem: str, lost: str) -> dict[str, object]:
    report = {"changed": changed, "fingerprint": compute_fingerprint(pem)}
    return {**report, "warning": lost} if lost else report


def is_pair(pem: str) -> bool:
    """Return whether a text holds a certificate and its key, whole."""
    try:
        return bool(pem) and bool(read_given(pem, CERTIFICATE.sub("", pem)))
    except HostError:
        return False


def _describe_loss(paths: Paths) -> str:
    """Describe the loss of the certificate that the last apply left; empty where it left none."""
    known = applied_record.read(paths).get("certificate_sha256")
    if not known:
        return ""
    return (
        f"the certificate of the last apply (SHA-256 {known}) is lost, and a new self-signed one "
        f"takes its place: clients that pin the old one refuse it; {_RESTORE} brings the old one "
        "back, without a backup give them the new one: kimi-prov connect INVENTORY"
    )


def install(paths: Paths, pem: str) -> None:
    """Write a certificate with its key for the proxy, which loads it at its next reload."""
    write_atomic(paths.tls_pem, pem, 0o640, PROXY_USER)
    write_atomic(paths.tls_crt, extract_certificates(pem), 0o644)
    applied_record.amend(paths, certificate_sha256=compute_fingerprint(pem))
