from __future__ import annotations

from kimi_prov.on_host.gateway import acme, tls

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
