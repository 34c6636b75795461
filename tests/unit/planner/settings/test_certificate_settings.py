from __future__ import annotations

import pytest

from kimi_prov.errors import UserError
from kimi_prov.planner.settings.parsing import parse_settings

ACME = {"kimi_tls": "acme", "kimi_tls_names": ["kimi.example.com"]}


def settings(tmp_path, **variables):
    for name in ("server.pem", "server.key", "hook"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    wanted = {"kimi_model": "kimi-k2-lab", **variables}
    return parse_settings(wanted, host="h1", base=tmp_path, locate=lambda name: f"kimi.yml:{name}")


def refused(tmp_path, **variables):
    with pytest.raises(UserError) as found:
        settings(tmp_path, **variables)
    assert found.value.fix
    return str(found.value)


FILES = {"kimi_tls_cert_file": "server.pem", "kimi_tls_key_file": "server.key"}


@pytest.mark.parametrize(
    "given",
    [
        {},
        FILES,
        {"kimi_tls": "files", **FILES},
        {"kimi_tls": "self-signed", "kimi_tls_names": ["10.0.0.1"]},
        ACME,
        {
            **ACME,
            "kimi_tls_names": ["*.example.com", "example.com"],
            "kimi_acme_challenge": "dns-01",
            "kimi_acme_dns_hook": "hook",
        },
    ],
)
def test_what_goes_together_is_taken(tmp_path, given):
    assert settings(tmp_path, **given).tls == given.get("kimi_tls", "auto")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"kimi_tls": "files"},
            "kimi.yml:kimi_tls: kimi_tls: files, and kimi_tls_cert_file",
        ),
        ({"kimi_tls": "self-signed", **FILES}, "kimi_tls_cert_file is set as well"),
        ({**ACME, **FILES}, "kimi_tls_cert_file is set as well"),
        ({"kimi_tls": "acme"}, "kimi_tls_names is empty"),
        ({**ACME, "kimi_tls_names": ["10.0.0.1"]}, "10.0.0.1 is an address"),
        ({**ACME, "kimi_tls_names": ["kimi.example.com", "fd00::1"]}, "fd00::1 is an address"),
        ({**ACME, "kimi_tls_names": ["ki_mi.example.com"]}, "found 'ki_mi.example.com'"),
        ({**ACME, "kimi_tls_names": ["--domain"]}, "found '--domain'"),
        ({**ACME, "kimi_tls_names": ["kimi.example.com."]}, "expected names of DNS"),
        ({**ACME, "kimi_tls_names": ["a.*.example.com"]}, "expected names of DNS"),
        ({**ACME, "kimi_tls_names": [f"h{n}.example.com" for n in range(101)]}, "at most 100"),
        ({**ACME, "kimi_tls_names": ["*.example.com"]}, "the wildcard *.example.com by http-01"),
        ({**ACME, "kimi_acme_challenge": "dns-01"}, "kimi_acme_dns_hook is not set"),
        ({**ACME, "kimi_acme_dns_hook": "hook"}, "http-01, which calls no program"),
        ({**ACME, "kimi_port": 80}, "80 is where http-01 is answered"),
        ({**ACME, "kimi_acme_directory_url": "http://ca.example.com/dir"}, "expected https"),
        ({**ACME, "kimi_acme_contact": "nobody"}, "expected an address of mail, found 'nobody'"),
        ({**ACME, "kimi_acme_contact": "-x@example.com"}, "expected an address of mail"),
        ({**ACME, "kimi_acme_challenge": "http01"}, "did you mean http-01?"),
    ],
)
def test_what_contradicts_is_refused_where_it_was_written(tmp_path, given, told):
    assert told in refused(tmp_path, **given)
