"""What kimi-prov changes between two applies is taken over into the record, and is no drift."""

from __future__ import annotations

import pytest

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.drift import compare
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.keys import key_map, publish
from kimi_prov.on_host.system import applied_record
from kimi_prov.on_host.system.files import read_text, write_json


@pytest.fixture
def paths(tmp_path):
    """A machine with keys and a certificate, and the record of an apply that made them."""
    paths = Paths(tmp_path)
    paths.proxy.mkdir(parents=True)
    paths.state.mkdir(parents=True)
    publish.ensure(paths, {})
    made = tls.ensure(paths, {"mode": "self-signed", "names": ["a.example"]})
    told = publish.describe_keys(key_map.parse_map(read_text(paths.key_map)))
    whole = {"schema": applied_record.SCHEMA, **told, "certificate_sha256": made["fingerprint"]}
    write_json(str(paths.applied), whole)
    return paths


def drift(paths):
    told = publish.describe_keys(key_map.parse_map(read_text(paths.key_map)))
    now = {**told, "certificate_sha256": tls.compute_fingerprint(read_text(paths.tls_crt))}
    was = applied_record.read(paths)
    found = [*compare.compare_keys(was, now), *compare.compare_certificate(was, now)]
    return [(row.id, row.subject) for row in found]


def test_keys_that_the_command_changed(paths):
    publish.rotate(paths)
    assert drift(paths) == []
    publish.ensure(paths, {"ann": "1" * 64})
    publish.revoke(paths, "ann")
    assert drift(paths) == []


def test_a_certificate_that_was_made_anew(paths):
    before = applied_record.read(paths)["certificate_sha256"]
    tls.ensure(paths, {"mode": "self-signed", "names": ["b.example"]})
    assert applied_record.read(paths)["certificate_sha256"] != before
    assert drift(paths) == []


def test_what_somebody_wrote_by_hand_is_drift_until_the_command_takes_it_away(paths):
    with paths.key_map.open("a") as stream:
        stream.write("2" * 64 + " eve\n")
    paths.tls_crt.write_text(tls.extract_certificates(tls.make_self_signed(["c.example"])))
    assert drift(paths) == [
        ("drift.key_added", "eve"),
        ("drift.certificate", "/etc/kimi/proxy/tls.crt"),
    ]
    publish.revoke(paths, "eve")
    assert ("drift.key_added", "eve") not in drift(paths)


def test_without_a_record_none_is_begun(paths):
    paths.applied.unlink()
    publish.rotate(paths)
    assert not paths.applied.exists()
