from __future__ import annotations

import stat

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import tls

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
