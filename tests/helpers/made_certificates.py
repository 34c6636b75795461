"""Certificates that tests make: self-signed, of any name and age."""

from __future__ import annotations

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificate(
    names: list[str], days_ago: float, days_left: float, addresses: tuple[str, ...] = ()
) -> str:
    """A certificate with its key, as PEM: some of its life may be over, or has not begun."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "made by the test")])
    now = datetime.datetime.now(datetime.UTC)
    subjects = [
        *(x509.DNSName(text) for text in names),
        *(x509.IPAddress(ipaddress.ip_address(text)) for text in addresses),
    ]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=days_ago))
        .not_valid_after(now + datetime.timedelta(days=days_left))
        .add_extension(x509.SubjectAlternativeName(subjects), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return (made.public_bytes(serialization.Encoding.PEM) + private).decode()
