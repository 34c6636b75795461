"""What certbot 2.1.0 writes, as seen on Debian 12 against pebble 2.4.0 and without a network."""

from __future__ import annotations

import json

import pytest

from kimi_prov.on_host.proxy import acme_problem

HTTP = {"challenge": "http-01", "directory_url": "https://ca.example.com/dir"}
DNS = {**HTTP, "challenge": "dns-01"}
# Instead of the problem: Python 3.11 sets an attribute of the error, which takes none.
HIDDEN = """Saving debug log to /var/lib/kimi/acme/client/logs/letsencrypt.log
Renewing an existing certificate for kimi.example.com
An unexpected error occurred:
AttributeError: can't set attribute
Ask for help or search for solutions at https://community.letsencrypt.org. See the logfile.
"""


def response(kind: str, detail: str, status: int = 400) -> str:
    problem = {"type": f"urn:ietf:params:acme:error:{kind}", "detail": detail, "status": status}
    return (
        f"2026-11-22 14:46:34,270:DEBUG:acme.client:Received response:\nHTTP {status}\n"
        "Content-Type: application/problem+json; charset=utf-8\n"
        f"Replay-Nonce: 4M1h\n\n{json.dumps(problem, indent=3)}\n"
    )


def authorization(kind: str, detail: str) -> str:
    error = json.loads(response(kind, detail).partition("\n\n")[2])
    challenge = {"type": "http-01", "url": "https://ca.example.com/c/1", "token": "jaA"}
    body = {"status": "invalid", "challenges": [{**challenge, "status": "invalid", "error": error}]}
    return f"DEBUG:acme.client:Received response:\nHTTP 200\n\n{json.dumps(body, indent=3)}\n"


UNREACHED = (
    'Get "http://kimi.example.com:80/.well-known/acme-challenge/jaA": dial tcp 192.0.2.7:80: '
    "connect: connection refused"
)
LIMIT = (
    "Error creating new order :: too many certificates (5) already issued for this exact set of "
    "domains in the last 168 hours: kimi.example.com, retry after 2026-11-24T01:02:03Z"
)


def unexpected(line: str) -> str:
    return HIDDEN.replace("AttributeError: can't set attribute", line)


@pytest.mark.parametrize(
    ("settings", "output", "log", "kind", "told", "fix"),
    [
        (HTTP, "", authorization("connection", UNREACHED), "challenge", UNREACHED, "port 80"),
        (
            DNS,
            "",
            authorization("unauthorized", "No TXT record found"),
            "challenge",
            "No TXT record found",
            "kimi_acme_dns_hook",
        ),
        (HTTP, HIDDEN, response("rateLimited", LIMIT, 429), "rate-limit", LIMIT, "wait"),
        (
            HTTP,
            HIDDEN,
            response("rejectedIdentifier", "Domain is on a blocklist"),
            "refused",
            "Domain is on a blocklist",
            "kimi_tls_names",
        ),
        (
            HTTP,
            HIDDEN,
            response("accountDoesNotExist", "No such account"),
            "account",
            "No such account",
            "kimi-prov apply",
        ),
        (
            HTTP,
            HIDDEN,
            response("orderNotReady", "The order waits"),
            "refused",
            "The order waits",
            "letsencrypt.log",
        ),
        (
            HTTP,
            unexpected("ValueError: Requesting localhost/dir: Connection refused"),
            "",
            "unreachable",
            "https://ca.example.com/dir: ValueError: Requesting localhost/dir: Connection refused",
            "kimi_https_proxy",
        ),
        (
            HTTP,
            unexpected(
                "requests.exceptions.SSLError: HTTPSConnectionPool(host='ca.example.com', "
                "port=443): Max retries exceeded with url: /dir (Caused by SSLError("
                "SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify "
                "failed: self-signed certificate (_ssl.c:992)')))"
            ),
            "",
            "untrusted",
            "self-signed certificate",
            "kimi_ca_bundle",
        ),
        (
            HTTP,
            unexpected(
                "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='ca.example.com', "
                "port=443): Max retries exceeded with url: /dir (Caused by NewConnectionError("
                "'...: Failed to establish a new connection: [Errno -2] Name or service not "
                "known'))"
            ),
            "",
            "unreachable",
            "Name or service not known",
            "correct kimi_acme_directory_url",
        ),
        (
            HTTP,
            "Could not bind TCP port 8002 because it is already in use by another process",
            "",
            "port",
            "Could not bind TCP port 8002",
            "kimi_port",
        ),
        (HTTP, "", "", "failed", "certbot ended: it wrote nothing", "letsencrypt.log"),
        (HTTP, unexpected("KeyError: 'x'"), "", "failed", "KeyError: 'x'", "letsencrypt.log"),
    ],
)
def test_each_refusal_is_told_with_cause_and_fix(settings, output, log, kind, told, fix):
    found = acme_problem.explain_failure(output, log, settings)
    assert found["kind"] == kind
    assert told in found["message"]
    assert fix in found["fix"]


def test_a_nonce_that_was_asked_for_again_is_no_cause():
    log = response("rejectedIdentifier", "blocked") + response("badNonce", "JWS has an old nonce")
    assert acme_problem.explain_failure(HIDDEN, log, HTTP)["message"].endswith("blocked")


def test_the_problem_of_each_name_is_told_once():
    log = authorization("dns", "no A for a.example.com") * 2
    log += authorization("dns", "no A for b.example.com")
    message = acme_problem.explain_failure("", log, HTTP)["message"]
    assert message.endswith("no A for a.example.com; no A for b.example.com")


def test_what_the_authority_says_is_one_clean_line_of_some_length():
    log = authorization("connection", "first\nsecond \x1b[31mred " + "x" * 5000)
    message = acme_problem.explain_failure("", log, HTTP)["message"]
    assert "\n" not in message
    assert "\x1b" not in message
    assert "first second red xxx" in message
    assert len(message) < 600


def test_a_log_that_was_cut_is_told_as_far_as_it_goes():
    cut = authorization("connection", UNREACHED)
    cut = cut[: cut.index('"detail"')]
    assert acme_problem.explain_failure("", cut, HTTP)["message"].endswith("names: connection")


def test_a_hook_that_failed_is_told_beside_what_the_authority_saw():
    output = "Hook '--manual-auth-hook' for kimi.example.com reported error code 3\n"
    log = authorization("unauthorized", "No TXT record found")
    message = acme_problem.explain_failure(output, log, DNS)["message"]
    assert "reported error code 3; No TXT record found" in message


@pytest.mark.parametrize(
    ("settings", "timed_out", "kind", "fix"),
    [
        (HTTP, True, "timeout", "let the machine reach kimi_acme_directory_url"),
        (DNS, True, "timeout", "make kimi_acme_dns_hook faster"),
        (HTTP, False, "failed", "apt-get install --reinstall certbot"),
    ],
)
def test_a_run_that_did_not_come_to_its_end_is_told_as_that(settings, timed_out, kind, fix):
    found = acme_problem.explain_unfinished("certbot: not found", settings, timed_out=timed_out)
    assert found["kind"] == kind
    assert fix in found["fix"]


def test_a_program_of_the_site_that_writes_much_is_told_in_short():
    hook = "--manual-auth-hook command ran with error " + "x" * 100_000
    found = acme_problem.explain_failure(
        hook, authorization("unauthorized", "No TXT record found"), DNS
    )
    assert len(found["message"]) < 1000
    assert "No TXT record found" in found["message"]
