"""Certificates as openssl reads them."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kimi_prov.on_host.endpoint import certificate, tls

DAY = 86400


def named(issuer: str) -> str:
    """A certificate of a day's life by an issuer of any name."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)])
    begin = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)
    subject = x509.SubjectAlternativeName([x509.DNSName("kimi.example.com")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=1))
        .add_extension(subject, critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


def test_a_certificate_tells_its_time_names_and_issuer():
    found = certificate.read(tls.make_self_signed(["kimi.example.com", "10.0.0.1", "fd00::1"]))
    assert found is not None
    assert found.lifetime_s == tls.DAYS * DAY
    assert {"kimi.example.com", "10.0.0.1", "localhost"} <= set(found.names)
    assert found.issuer == "CN=kimi.example.com"


def test_who_issued_it_can_be_called_what_he_likes():
    name = "x\nnotAfter=Jan  1 00:00:00 2099 GMT\nDNS:other.example.com\x1b[2J"
    found = certificate.read(named(name))
    assert found is not None
    assert found.lifetime_s == DAY
    assert found.names == ("kimi.example.com",)
    assert found.issuer.isprintable()


@pytest.mark.parametrize("text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_what_is_no_certificate_is_none(text):
    assert certificate.read(text) is None
