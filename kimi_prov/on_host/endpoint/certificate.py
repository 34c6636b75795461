"""Reads a certificate, and decides whether the operator has to act on it.

Decides: when a certificate is ordered, and when its end is reported.
Applied by: roles/acme.
Held by: tests/unit/on_host/endpoint/test_certificate.py,
  tests/component/on_host/endpoint/test_certificate_files.py,
  tests/unit/on_host/proxy/test_acme_problem.py, tests/lab/test_acme.py.
"""

from __future__ import annotations

import re
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names
from kimi_prov.on_host.system.files import read_json, read_text
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.documents.status.host import (
        CertificateJudgement,
        CertificateMode,
        CertificateState,
        CertificateStatus,
        LastOrder,
    )
    from kimi_prov.contract.paths import Paths

DAY_S = 86400
# Weeks before the end, or a quarter of the life of a certificate that lasts days.
AHEAD_S = 21 * DAY_S
AHEAD_SHARE = 4
# By then a quarter of the renewals' time has passed in vain: the rest is for the operator's fix.
RENEW_SHARE = 3
_CLOCK = (
    "compare `date -u` with another machine's clock, and correct the one that is wrong; where both "
    "are right, wait until then or take another certificate"
)
_LINE = re.compile(r"^(notBefore|notAfter|issuer)=(.*)$", re.MULTILINE)
_NAME = re.compile(r"\b(?:DNS|IP Address):([^,\s]+)")


@dataclass(frozen=True)
class Certificate:
    """The first certificate of a PEM text: its validity in seconds since 1970, names, issuer."""

    not_before: int
    not_after: int
    names: tuple[str, ...]
    issuer: str

    @property
    def lifetime_s(self) -> int:
        """Return the seconds of its whole validity."""
        return self.not_after - self.not_before


def read(pem: str) -> Certificate | None:
    """Parse a certificate; None where the text holds none, or none that openssl reads."""
    done = run(
        *(
            "openssl",
            "x509",
            "-noout",
            "-dates",
            "-issuer",
            "-nameopt",
            "utf8,esc_ctrl,sep_comma_plus",
        ),
        *("-ext", "subjectAltName"),
        stdin=pem,
    )
    found = dict(_LINE.findall(done.stdout))
    if done.returncode != 0 or not {"notBefore", "notAfter"} <= set(found):
        return None
    # Read after the issuer, whose name may contain text that looks like this.
    listed = done.stdout.partition("X509v3 Subject Alternative Name")[2]
    return Certificate(
        int(ssl.cert_time_to_seconds(found["notBefore"])),
        int(ssl.cert_time_to_seconds(found["notAfter"])),
        tuple(_NAME.findall(listed)),
        found.get("issuer", "").strip(),
    )


def format_time(seconds: int) -> str:
    """Return a time in UTC, in the form of RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _describe_end(left_s: int) -> str:
    days = left_s // DAY_S
    return f"{days} days" if days > 1 else f"{left_s // 3600} hours"


def judge_certificate(
    found: Certificate | None, mode: str, order: dict[str, Any], now: int
) -> CertificateJudgement:
    """Check a certificate: {"state", "detail", "fix"}; `fix` is None where nothing is to do.

    `state`: ok, failing (an order or a renewal was refused), expiring, expired, early (not valid
    yet), absent. `mode`: the plan's. `order`: the result of the last order, empty without one.
    """
    problem = order.get("problem") if mode == "acme" else None
    cause = ""
    if problem:
        cause = (
            f"; the order of {format_time(int(order.get('tried', 0)))} failed: {problem['message']}"
        )
    if found is None:
        return _build_judgement(
            "absent", "there is no certificate" + cause, _describe_fix(mode, problem)
        )
    left = found.not_after - now
    ends = format_time(found.not_after)
    if left <= 0:
        return _build_judgement(
            "expired", f"it ended on {ends}{cause}", _describe_fix(mode, problem)
        )
    if found.not_before > now:
        begins = format_time(found.not_before)
        return _build_judgement(
            "early", f"it is valid from {begins} on, and now is {format_time(now)}", _CLOCK
        )
    told = f"it ends on {ends}, in {_describe_end(left)}"
    if left <= min(AHEAD_S, found.lifetime_s // AHEAD_SHARE):
        if mode == "acme" and not problem:
            cause = "; no renewal was tried"
        return _build_judgement("expiring", told + cause, _describe_fix(mode, problem))
    if problem:
        return _build_judgement("failing", told + cause, _describe_fix(mode, problem))
    return _build_judgement("ok", told, None)


def _build_judgement(state: CertificateState, detail: str, fix: str | None) -> CertificateJudgement:
    return {"state": state, "detail": detail, "fix": fix}


def _describe_fix(mode: str, problem: dict[str, Any] | None) -> str:
    if mode == "files":
        return "put a new one into kimi_tls_cert_file and kimi_tls_key_file, then `kimi-prov apply`"
    if mode == "acme" and problem:
        return str(problem["fix"])
    if mode == "acme":
        timer = unit_names.ACME_TIMER
        return f"find out why {timer} did not run: systemctl list-timers {timer}; `kimi-prov apply`"
    return "`kimi-prov apply` makes a new one"


def explain_order(
    found: Certificate | None,
    issued: dict[str, Any],
    settings: dict[str, Any],
    now: int,
) -> str:
    """Return why a certificate has to be ordered, empty where none has.

    `issued`: authority and names of the last certificate; `settings`: those that are set now. It is
    ordered again with a third of its life left, as certbot and Let's Encrypt advise.
    """
    if found is None:
        return "there is no certificate yet"
    if issued.get("directory_url") != settings["directory_url"]:
        return "another certificate authority is set"
    if sorted(issued.get("names") or ()) != sorted(settings["names"]):
        return "other names are set"
    if found.not_after - now <= found.lifetime_s // RENEW_SHARE:
        return "it ends on " + format_time(found.not_after)
    return ""


def describe_certificate(
    found: Certificate | None, mode: CertificateMode, order: dict[str, Any], now: int
) -> CertificateStatus:
    """Return the certificate in use as `status` shows it."""
    problem = order.get("problem") if mode == "acme" else None
    names: list[str] = list(found.names) if found else []
    return {
        **judge_certificate(found, mode, order, now),
        "mode": mode,
        "names": names,
        "issuer": found.issuer if found else None,
        "not_before": format_time(found.not_before) if found else None,
        "not_after": format_time(found.not_after) if found else None,
        "last_order": _describe_order(order, problem) if mode == "acme" and order else None,
    }


def _describe_order(order: dict[str, Any], problem: dict[str, Any] | None) -> LastOrder:
    return {
        "tried": format_time(int(order.get("tried", 0))),
        "ok": problem is None,
        "kind": problem["kind"] if problem else None,
        "detail": problem["message"] if problem else None,
        "fix": problem["fix"] if problem else None,
    }


def describe_current(paths: Paths, plan: Plan) -> CertificateStatus:
    """Describe the certificate that the proxy uses, now."""
    found = read(read_text(paths.tls_crt))
    mode = plan["proxy"]["tls"]["mode"]
    return describe_certificate(found, mode, read_json(paths.acme_state), int(time.time()))
