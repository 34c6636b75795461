"""Variables of an inventory: the opened port and the web UI."""

from __future__ import annotations

from kimi_prov.planner.settings.definitions.variable import OFF, Variable, define

_PORT = "The opened port"
_WEB_UI = "The page to talk to the model"

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
        "Networks from which the port may be reached. Empty: from the machine itself alone.",
    ),
    define(
        _PORT,
        "tls",
        "choice",
        "auto",
        "acme",
        "Where the certificate comes from: files of yours, a self-signed one made on the machine, "
        "or acme, a certificate authority that speaks ACME and is asked again before the end. "
        "auto: files where kimi_tls_cert_file is set, else self-signed.",
        choices=("auto", "files", "self-signed", "acme"),
    ),
    define(
        _PORT,
        "tls_cert_file",
        "file",
        None,
        "certs/server.pem",
        "Certificate chain (PEM) on the control machine. Not set: a self-signed one is made.",
    ),
    define(
        _PORT,
        "tls_key_file",
        "file",
        None,
        "certs/server.key",
        "Private key of the certificate, on the control machine.",
    ),
    define(
        _PORT,
        "tls_names",
        "texts",
        [],
        "[kimi.example.com]",
        "Names and addresses in the self-signed certificate, beside the machine's own. With "
        "kimi_tls: acme the names that the certificate is ordered for.",
    ),
    define(
        _PORT,
        "acme_directory_url",
        "url",
        "https://acme-v02.api.letsencrypt.org/directory",
        "https://ca.example.com/acme/acme/directory",
        "Directory of the certificate authority. One of the site's own is trusted by "
        "kimi_ca_bundle. To set kimi_tls: acme is to agree to the authority's terms.",
    ),
    define(
        _PORT,
        "acme_contact",
        "text",
        None,
        "admin@example.com",
        "Address of mail that the certificate authority may write to. Not set: none is given.",
    ),
    define(
        _PORT,
        "acme_challenge",
        "choice",
        "http-01",
        "dns-01",
        "How the names are proven: http-01 by an answer on port 80, which is open meanwhile, "
        "dns-01 by a record that kimi_acme_dns_hook writes.",
        choices=("http-01", "dns-01"),
    ),
    define(
        _PORT,
        "acme_dns_hook",
        "file",
        None,
        "hooks/dns",
        "Program on the control machine that writes the record of dns-01 and takes it away; it is "
        "copied, and runs on the machine as kimi-acme.",
    ),
    define(
        _PORT,
        "api_keys_file",
        "file",
        None,
        "secrets/api-keys",
        "File on the control machine with lines NAME:KEY or NAME:sha256:HEX, a rule behind it "
        "where there is one (expires=2027-01-31 tokens_per_day=1000000). Not set: a first key is "
        "made, and `kimi-prov key` shows it once.",
    ),
    define(
        _WEB_UI,
        "web_ui",
        "switch",
        OFF,
        "true",
        "Serve Open WebUI, a page with accounts and history, behind the same proxy and "
        "certificate. Behind gateways one for all machines, on the first of them.",
    ),
    define(
        _WEB_UI,
        "web_port",
        "port",
        8443,
        "443",
        "TCP port of the page, for the same networks as the API's.",
    ),
    define(
        _WEB_UI,
        "web_admin_file",
        "file",
        None,
        "secrets/web-admin",
        "File on the control machine with one line, E-MAIL:PASSWORD, of the page's first "
        "administrator. Not set: a password is made, and `kimi-prov key` shows it once. It counts "
        "until there is an account; later it changes nothing.",
    ),
    define(
        _WEB_UI,
        "web_signup",
        "switch",
        OFF,
        "true",
        "Let visitors ask for an account, which an administrator lets in. false: an administrator "
        "makes each.",
    ),
)
