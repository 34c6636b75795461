"""Why certbot got no certificate: its output, as one cause with one fix.

The authority's own words are only in certbot's log: certbot 2.1 under Python 3.11 fails when it
prints them ("AttributeError: can't set attribute").

Decides: when a certificate is ordered, and when its end is reported (why an order failed).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text

if TYPE_CHECKING:
    from kimi_prov.contract.errors import HostError

# The types of problem documents (RFC 8555, section 6.7) for which there is a fix.
_AUTHORITY = {
    "rateLimited": (
        "rate-limit",
        "wait as long as it says, an early try counts again; meanwhile set kimi_tls: self-signed",
    ),
    "rejectedIdentifier": (
        "refused",
        "the authority does not issue for that name: list another one in kimi_tls_names",
    ),
    "unsupportedIdentifier": (
        "refused",
        "the authority does not issue for that name: list another one in kimi_tls_names",
    ),
    "caa": ("refused", "add the authority to the CAA record of the name's zone"),
    "accountDoesNotExist": ("account", "run `kimi-prov apply`: it registers a new account"),
    "externalAccountRequired": (
        "account",
        "set another kimi_acme_directory_url, or give a certificate with kimi_tls: files",
    ),
    "invalidContact": ("contact", "set kimi_acme_contact to an address that receives mail"),
    "unsupportedContact": ("contact", "set kimi_acme_contact to an address that receives mail"),
    "userActionRequired": ("account", "do what it asks for, then `kimi-prov apply`"),
    "serverInternal": ("authority", "try again later: `kimi-prov apply`"),
}
_CHALLENGE = frozenset({"connection", "dns", "unauthorized", "incorrectResponse", "tls"})
_ANSWERED = {
    "http-01": "make the names in kimi_tls_names resolve to this machine, and the authority reach "
    "its port 80 through every firewall and router before it; then `kimi-prov apply`",
    "dns-01": "check kimi_acme_dns_hook: the authority has to see the "
    "record _acme-challenge of the name when the program ends; then `kimi-prov apply`",
}
# Pattern of an error that is no problem document, its description, and the fix.
_WORDS = (
    (
        "certificate verify failed",
        "untrusted",
        "set kimi_ca_bundle to a file with the certificate of the authority that signed it",
    ),
    (
        "Name or service not known",
        "unreachable",
        "correct kimi_acme_directory_url, or the machine's name server",
    ),
    (
        "name resolution",
        "unreachable",
        "correct the machine's name server: it does not find kimi_acme_directory_url",
    ),
    (
        "Could not bind TCP port",
        "port",
        "end the program that has that port (ss -ltnp), or set another kimi_port",
    ),
    ("No space left on device", "disk", "free space on the disk of /var/lib/kimi"),
)
_UNREACHED = re.compile(
    r"Requesting [^\n]*|[^\n]*(?:ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|timed out)"
    r"[^\n]*"
)
_TYPE = re.compile(r'"type":\s*"urn:ietf:params:acme:error:(\w+)"')
_DETAIL = re.compile(r'"detail":\s*("(?:[^"\\]|\\.)*")')
_HOOK = re.compile(r"--manual-auth-hook[^\n]*(?:error code|ran with error|returned)[^\n]*", re.I)
# certbot requests new nonces by itself.
_HARMLESS = frozenset({"badNonce"})
READ_LOG = "read the log of certbot on the machine, /var/lib/kimi/acme/client/logs/letsencrypt.log"
# Characters within which the parts of one problem lie.
_MAX_LOG_TAIL = 20_000
_MAX_DETAILS = 3
_MAX_LENGTH = 400


def explain_failure(output: str, log: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return {"kind", "message", "fix"} for a run of certbot that failed.

    `output`: what it printed, `log`: the end of its log, `settings`: the order.
    """
    told = _parse_problems(log)
    if told:
        kind, details = told[-1][0], _describe_details(told)
        if kind in _CHALLENGE:
            hook = _HOOK.search(output) or _HOOK.search(log)
            said = [*([hook[0].strip()[:_MAX_LENGTH]] if hook else []), *details]
            return _build_problem(
                "challenge",
                "the certificate authority could not prove the names: " + "; ".join(said),
                _ANSWERED[settings["challenge"]],
            )
        name, fix = _AUTHORITY.get(kind, ("refused", READ_LOG))
        what = "refused the order" if name != "rate-limit" else "issues no more for a while"
        return _build_problem(name, f"the certificate authority {what}: {'; '.join(details)}", fix)
    last = _find_cause(output)
    at = settings["directory_url"]
    for words, kind, fix in _WORDS:
        if words.lower() in last.lower():
            return _build_problem(kind, f"{at}: {last}", fix)
    if _UNREACHED.search(last):
        fix = "let the machine reach kimi_acme_directory_url, by kimi_https_proxy where it has to"
        return _build_problem("unreachable", f"{at}: {last}", fix)
    return _build_problem("failed", "certbot ended: " + last, READ_LOG)


def explain_unfinished(said: str, settings: dict[str, Any], *, timed_out: bool) -> dict[str, Any]:
    """Return the same for a run that did not end, or did not start; `said`: why."""
    if not timed_out:
        return _build_problem(
            "failed", said, "install it again: apt-get install --reinstall certbot"
        )
    fix = "let the machine reach kimi_acme_directory_url, by kimi_https_proxy where it has to"
    if settings["challenge"] == "dns-01":
        fix = "make kimi_acme_dns_hook faster; else " + fix
    return _build_problem("timeout", "the order took too long and was ended", fix)


def from_host_error(error: HostError) -> dict[str, Any]:
    """Return the same for a failure on the machine itself."""
    return _build_problem("failed", error.message, error.fix or READ_LOG)


def _build_problem(kind: str, message: str, fix: str) -> dict[str, Any]:
    return {"kind": kind, "message": clean_text.clean_line(message), "fix": fix}


def _parse_problems(log: str) -> list[tuple[str, str]]:
    """Return type and detail of every problem document in a log, in order."""
    found = []
    for match in _TYPE.finditer(log):
        after = _DETAIL.search(log, match.end(), match.end() + _MAX_LOG_TAIL)
        if match[1] not in _HARMLESS:
            found.append((match[1], _parse_text(after[1]) if after else ""))
    return found


def _describe_details(problems: list[tuple[str, str]]) -> list[str]:
    kind = problems[-1][0]
    texts = [detail or name for name, detail in problems if name == kind]
    return list(dict.fromkeys(texts))[:_MAX_DETAILS]


def _parse_text(literal: str) -> str:
    try:
        return str(json.loads(literal))[:_MAX_LENGTH]
    except ValueError:
        return literal.strip('"')[:_MAX_LENGTH]


def _find_cause(output: str) -> str:
    """Return the most specific line of certbot's output: the one after its general remark."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("Ask for help", "Saving debug log"))]
    for number, line in enumerate(lines[:-1]):
        if line.startswith("An unexpected error occurred"):
            return lines[number + 1][:_MAX_LENGTH]
    return lines[-1][:_MAX_LENGTH] if lines else "it wrote nothing"
