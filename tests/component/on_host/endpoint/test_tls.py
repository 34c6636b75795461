from __future__ import annotations

import stat

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.system import applied_record

NAMES = ["lab1", "10.0.0.1", "fd00::1"]


@pytest.fixture
def paths(tmp_path):
    found = Paths(tmp_path)
    found.proxy.mkdir(parents=True)
    return found


def self_signed(names):
    return {"mode": "self-signed", "names": names}


def test_a_self_signed_certificate_is_made_once_and_again_for_other_names(paths):
    first = tls.ensure(paths, self_signed(NAMES))
    assert first["changed"] is True
    again = tls.ensure(paths, self_signed(NAMES))
    assert again == {"changed": False, "fingerprint": first["fingerprint"]}
    other = tls.ensure(paths, self_signed([*NAMES, "kimi.example"]))
    assert other["changed"] is True
    assert other["fingerprint"] != first["fingerprint"]


def test_the_private_key_is_closed_and_the_public_file_has_none(paths):
    tls.ensure(paths, self_signed(NAMES))
    assert stat.S_IMODE(paths.tls_pem.stat().st_mode) == 0o640
    assert "PRIVATE KEY" in paths.tls_pem.read_text()
    assert "PRIVATE KEY" not in paths.tls_crt.read_text()
    assert tls.compute_fingerprint(paths.tls_crt.read_text()) == tls.compute_fingerprint(
        paths.tls_pem.read_text()
    )


def test_given_files_are_taken_as_they_are_and_a_wrong_pair_is_refused(paths):
    pem, other = tls.make_self_signed(["a"]), tls.make_self_signed(["b"])
    certificate, key = tls.extract_certificates(pem), pem[pem.index("-----BEGIN PRIVATE KEY") :]
    foreign = other[other.index("-----BEGIN PRIVATE KEY") :]
    wish = {"mode": "files", "names": [], "cert_pem": certificate, "key_pem": key}
    assert tls.ensure(paths, wish)["fingerprint"] == tls.compute_fingerprint(pem)
    assert tls.ensure(paths, wish)["changed"] is False
    with pytest.raises(HostError, match="kimi_tls_key_file"):
        tls.ensure(paths, {**wish, "key_pem": foreign})
    with pytest.raises(HostError, match="kimi_tls_cert_file"):
        tls.ensure(paths, {**wish, "cert_pem": "no certificate"})
    assert tls.compute_fingerprint(paths.tls_pem.read_text()) == tls.compute_fingerprint(pem)


def read_key(pem):
    return pem[pem.index("-----BEGIN PRIVATE KEY") :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda pem: pem[: len(pem) // 2],
        lambda pem: "",
        lambda pem: "\0" * len(pem),
        lambda pem: tls.extract_certificates(pem) + read_key(tls.make_self_signed(["b"])),
    ],
    ids=["truncated", "empty", "zeros", "another key"],
)
def test_a_damaged_certificate_is_kept_and_ends_the_command(paths, damage):
    tls.ensure(paths, self_signed(NAMES))
    damaged = damage(paths.tls_pem.read_text())
    paths.tls_pem.write_text(damaged)
    with pytest.raises(HostError) as raised:
        tls.ensure(paths, self_signed(NAMES))
    assert "kimi-prov restore" in raised.value.fix
    assert "pin" in raised.value.fix
    assert paths.tls_pem.read_text() == damaged
    (copy,) = paths.proxy.glob("tls.pem.broken-*")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_a_damaged_certificate_is_replaced_by_the_one_of_the_inventory(paths):
    pem = tls.make_self_signed(["a"])
    certificate = tls.extract_certificates(pem)
    wish = {"mode": "files", "names": [], "cert_pem": certificate, "key_pem": read_key(pem)}
    paths.tls_pem.write_text("")
    assert tls.ensure(paths, wish)["fingerprint"] == tls.compute_fingerprint(pem)


def test_a_damaged_issued_certificate_is_never_installed(paths):
    wish = {**self_signed(NAMES), "mode": "acme"}
    own = tls.ensure(paths, wish)["fingerprint"]
    paths.acme_pem.write_text(tls.make_self_signed(["a"])[:300])
    assert tls.ensure(paths, wish) == {"changed": False, "fingerprint": own}


@pytest.mark.parametrize("check", [True, False])
def test_the_loss_of_the_applied_certificate_is_told(paths, check):
    first = tls.ensure(paths, self_signed(NAMES))
    assert "warning" not in first
    known = {"schema": applied_record.SCHEMA, "certificate_sha256": first["fingerprint"]}
    applied_record.write(paths, known)
    paths.tls_pem.unlink()
    found = tls.ensure(paths, self_signed(NAMES), check=check)
    assert found["changed"] is True
    for text in (first["fingerprint"], "kimi-prov restore", "pin"):
        assert text in found["warning"]
    assert paths.tls_pem.exists() is not check
