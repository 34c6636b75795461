"""Variables of an inventory: the opened port and the web UI."""

from __future__ import annotations

from kimi_prov.planner.settings.definitions.variable import OFF, Variable, define

_PORT = "The opened port"
_WEB_UI = "The web UI"

VARIABLES: tuple[Variable, ...] = (
    define(
        _PORT,
        "port",
        "port",
        8000,
        "443",
        "TCP port of the API. Engines take the ports after it, below 1024 those 8000 higher.",
    ),
    define(
        _PORT,
        "allowed_networks",
        "networks",
        [],
        '["10.0.0.0/8", "fd00::/8"]',
        "Networks from which the port may be reached. Empty: only from the machine itself.",
    ),
    define(
        _PORT,
        "request_body_max",
        "count",
        "auto",
        "67108864",
        "Bytes of the largest request body; a larger one gets 413. auto: by the context, and more "
        "where images are served. Behind gateways they hold it too.",
        auto=True,
        most=512 << 20,
    ),
    define(
        _PORT,
        "tls",
        "choice",
        "auto",
        "acme",
        "Source of the certificate: your files, a self-signed one that the machine creates, or "
        "acme, a certificate authority with ACME, which renews it in time. "
        "auto: files if kimi_tls_cert_file is set, else self-signed.",
        choices=("auto", "files", "self-signed", "acme"),
    ),
    define(
        _PORT,
        "tls_cert_file",
        "file",
        None,
        "certs/server.pem",
        "Certificate chain (PEM) on the control machine. Not set: a self-signed one is created.",
    ),
    define(
        _PORT,
        "tls_key_file",
        "file",
        None,
        "certs/server.key",
        "Private key of the certificate, on the control machine.",
        hides="file",
    ),
    define(
        _PORT,
        "tls_names",
        "texts",
        [],
        "[kimi.example.com]",
        "Names and addresses in the self-signed certificate, beside the machine's own. With "
        "kimi_tls: acme the names of the ordered certificate.",
    ),
    define(
        _PORT,
        "acme_directory_url",
        "url",
        "https://acme-v02.api.letsencrypt.org/directory",
        "https://ca.example.com/acme/acme/directory",
        "Directory of the certificate authority. A site's own authority is trusted by "
        "kimi_ca_bundle. With kimi_tls: acme you agree to the authority's terms.",
    ),
    define(
        _PORT,
        "acme_contact",
        "text",
        None,
        "admin@example.com",
        "E-mail address for the certificate authority. Not set: none is given.",
    ),
    define(
        _PORT,
        "acme_challenge",
        "choice",
        "http-01",
        "dns-01",
        "Proof of the names: http-01 by an answer on port 80, which is open meanwhile, "
        "dns-01 by a record that kimi_acme_dns_hook writes.",
        choices=("http-01", "dns-01"),
    ),
    define(
        _PORT,
        "acme_dns_hook",
        "file",
        None,
        "hooks/dns",
        "Program on the control machine that writes and removes the record of dns-01; it is "
        "copied, and runs on the machine as kimi-acme.",
    ),
    define(
        _PORT,
        "api_keys_file",
        "file",
        None,
        "secrets/api-keys",
        "File on the control machine with lines NAME:KEY or NAME:sha256:HEX, each with an optional "
        "rule after it (expires=2027-01-31 tokens_per_day=1000000). Not set: a first key is "
        "created, and `kimi-prov key` shows it once.",
        hides="file",
    ),
    define(
        _WEB_UI,
        "web_ui",
        "switch",
        OFF,
        "true",
        "Serve the web UI, Open WebUI with accounts and history, behind the same proxy and "
        "certificate. Behind gateways it runs once for all machines, on the first gateway.",
    ),
    define(
        _WEB_UI,
        "web_port",
        "port",
        8443,
        "443",
        "TCP port of the web UI, for the same networks as the API's.",
    ),
    define(
        _WEB_UI,
        "web_admin_file",
        "file",
        None,
        "secrets/web-admin",
        "File on the control machine with one line, E-MAIL:PASSWORD, of the web UI's first "
        "administrator. Not set: a password is generated, and `kimi-prov key` shows it once. It "
        "counts until there is an account; later it changes nothing.",
        hides="file",
    ),
    define(
        _WEB_UI,
        "web_signup",
        "switch",
        OFF,
        "true",
        "Let visitors request an account, which an administrator approves. false: an administrator "
        "creates each account.",
    ),
)
