from __future__ import annotations

import stat

from kimi_prov.on_host.gateway import acme, tls
from kimi_prov.on_host.system.files import read_json

SETTINGS = {
    "directory_url": "https://ca.example.com/dir",
    "contact": "admin@example.com",
    "names": ["a.example.com", "b.example.com"],
    "challenge": "http-01",
    "port": 8002,
    "dns_hook": None,
    "ca_bundle": None,
}


def test_certbot_answers_by_http_on_the_loopback_alone():
    argv = " ".join(acme.command(SETTINGS, "/var/lib/kimi/acme/client"))
    assert "--standalone --http-01-address 127.0.0.1 --http-01-port 8002" in argv
    assert "--domain a.example.com --domain b.example.com" in argv
    assert "--server https://ca.example.com/dir --email admin@example.com" in argv
    assert "--config-dir /var/lib/kimi/acme/client/config" in argv


def test_certbot_calls_the_hook_for_dns_and_registers_without_a_contact():
    settings = {**SETTINGS, "challenge": "dns-01", "port": None, "contact": None}
    argv = acme.command(settings, "/home")
    assert argv[argv.index("--manual-auth-hook") + 1] == "/var/lib/kimi/acme/dns-hook auth"
    assert argv[argv.index("--manual-cleanup-hook") + 1] == "/var/lib/kimi/acme/dns-hook cleanup"
    assert "--standalone" not in argv
    assert "--register-unsafely-without-email" in argv


def test_a_self_signed_certificate_serves_until_the_first_is_issued(tmp_path):
    paths = acme.Paths(tmp_path)
    paths.proxy.mkdir(parents=True)
    wish = {"mode": "acme", "names": ["kimi.example.com"]}
    first = tls.ensure(paths, wish)
    assert first["changed"]
    assert not tls.ensure(paths, wish)["changed"]
    issued = tls.self_signed(["issued.example.com"])
    paths.acme_pem.write_text(issued)
    found = tls.ensure(paths, wish)
    assert found == {"changed": True, "fingerprint": tls.fingerprint(issued)}
    assert paths.tls_pem.read_text() == issued
    assert not tls.ensure(paths, wish)["changed"]
    # and goes when the operator wants none of it
    again = tls.ensure(paths, {**wish, "mode": "self-signed"})
    assert again["fingerprint"] not in (found["fingerprint"], "")
    assert paths.acme_pem.exists()


def test_a_refused_order_of_other_names_is_forgotten_once_nothing_is_left_to_order(tmp_path):
    paths = acme.Paths(tmp_path)
    paths.state.mkdir(parents=True)
    issued = {"directory_url": SETTINGS["directory_url"], "names": SETTINGS["names"]}
    acme.keep(paths, {"tried": 1, "problem": {"kind": "refused"}, "issued": issued})
    acme.settle(paths)
    assert read_json(paths.acme_state) == {"tried": 1, "problem": None, "issued": issued}


def test_what_the_unit_reads_is_written_once_and_the_hook_goes_with_its_challenge(tmp_path):
    paths = acme.Paths(tmp_path)
    for folder in (paths.etc, paths.home):
        folder.mkdir(parents=True)
    assert acme.install(paths, SETTINGS, "#!/bin/sh\n", check=True)
    assert not paths.acme_settings.exists()
    assert acme.install(paths, SETTINGS, "#!/bin/sh\n")
    assert not acme.install(paths, SETTINGS, "#!/bin/sh\n")
    assert stat.S_IMODE(paths.acme_settings.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.acme_hook.stat().st_mode) == 0o750
    assert read_json(paths.acme_settings) == SETTINGS
    assert acme.install(paths, SETTINGS, None)
    assert not paths.acme_hook.exists()
    assert not acme.install(paths, SETTINGS, None)
