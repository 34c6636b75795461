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


def signed(names: list[str]) -> tuple[str, str]:
    """An authority's certificate, and a certificate with its key that the authority signed."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    titles = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in ("CA", "server")]
    now = datetime.datetime.now(datetime.UTC)
    made = []
    for place, (key, title) in enumerate(zip(keys, titles, strict=True)):
        names_of = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = (
            x509.CertificateBuilder()
            .subject_name(title)
            .issuer_name(titles[0])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=not place, path_length=None), critical=True)
        )
        if place:
            builder = builder.add_extension(names_of, critical=False)
        made.append(builder.sign(keys[0], hashes.SHA256()))
    authority, own = (one.public_bytes(serialization.Encoding.PEM).decode() for one in made)
    private = keys[1].private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return authority, own + private.decode()
