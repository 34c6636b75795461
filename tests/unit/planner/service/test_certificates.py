from __future__ import annotations

import pytest

from kimi_prov.planner import web
from kimi_prov.planner.service import certificates, proxy
from kimi_prov.planner.settings.parsing import parse_settings


def settings(tmp_path, **variables):
    (tmp_path / "file").write_text("#!/bin/sh\n")
    return parse_settings({"kimi_model": "kimi-k2-lab", **variables}, host="h1", base=tmp_path)


ACME = {"kimi_tls": "acme", "kimi_tls_names": ["a.example.com", "b.example.com", "A.example.com"]}
DNS = {"kimi_acme_challenge": "dns-01", "kimi_acme_dns_hook": "file"}
FILES = {"kimi_tls_cert_file": "file", "kimi_tls_key_file": "file"}


@pytest.mark.parametrize(
    ("given", "mode", "trusted"),
    [
        ({}, "self-signed", False),
        (FILES, "files", True),
        ({"kimi_tls": "files", **FILES}, "files", True),
        ({"kimi_tls": "self-signed"}, "self-signed", False),
        (ACME, "acme", True),
    ],
)
def test_auto_is_files_where_there_are_and_browsers_trust_no_self_signed_one(
    tmp_path, given, mode, trusted
):
    found = certificates.make_document(settings(tmp_path, **given), 1)
    assert (found["mode"], found["trusted"]) == (mode, trusted)
    assert (found["acme"] is None) == (mode != "acme")


def test_an_answer_by_http_takes_port_80_and_a_port_after_the_engines(tmp_path):
    wanted = settings(tmp_path, **ACME, kimi_port=9000)
    assert certificates.choose_challenge_port(wanted) == 80
    assert certificates.list_ports(wanted, 2) == [80, 9004]
    acme = certificates.make_document(wanted, 2)["acme"]
    assert acme["port"] == 9004
    assert acme["names"] == ["a.example.com", "b.example.com"]
    assert acme["directory_url"] == "https://acme-v02.api.letsencrypt.org/directory"


def test_nobody_behind_the_proxy_is_root_or_takes_another_s_port(tmp_path):
    wanted = settings(tmp_path, **ACME, kimi_port=443, kimi_web_ui=True)
    engines = [row["port"] for row in proxy.list_backends(wanted, 2)]
    page = web.choose_ports(wanted, 2)
    taken = [443, 8443, *engines, *page, certificates.choose_client_port(wanted, 2)]
    assert engines == [8444, 8445]
    assert len(set(taken)) == len(taken)
    assert min(engines[0], *page) >= 1024


def test_the_client_is_no_root_and_takes_no_port_below_1024(tmp_path):
    assert certificates.list_ports(settings(tmp_path, **ACME, kimi_port=443), 1) == [80, 8446]


def test_an_answer_by_dns_opens_no_port(tmp_path):
    wanted = settings(tmp_path, **ACME, **DNS)
    assert certificates.choose_challenge_port(wanted) is None
    assert certificates.list_ports(wanted, 1) == []
    assert certificates.make_document(wanted, 1)["acme"]["dns_hook"] == str(tmp_path / "file")


def test_the_sites_bundle_is_named_as_the_machine_has_it(tmp_path):
    wanted = settings(tmp_path, **ACME, kimi_ca_bundle="file")
    assert certificates.make_document(wanted, 1)["acme"]["ca_bundle"] == "/etc/kimi/ca-bundle.pem"
