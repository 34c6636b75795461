"""The verify document as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.show.text.lines import format_entry, format_hosts, format_stand_ins

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.contract.documents.verify import CheckResult, VerifiedHost, Verify

# Columns of a check's status and name.
_NAMES = 27


def format_text(document: Verify) -> str:
    """Write the verify document: for each host its checks, one a line, then the verdict."""
    return format_hosts(document, _format_host, lambda host: host.get("endpoint", ""))


def _format_host(host: VerifiedHost) -> list[str]:
    lines = format_entry("seen from", f"{host['vantage']}: {host['vantage_reason']}", _NAMES)
    for check in host["checks"]:
        lines += _format_check(check)
    for told in host.get("unproven") or []:
        lines += format_entry("not proven", told, _NAMES)
    return [*lines, *format_stand_ins(host, _NAMES), "", _describe_verdict(host["checks"])]


def _format_check(check: CheckResult) -> list[str]:
    """Write one check; for a failed one also the expected and the actual answer."""
    label = f"{check['status']:<4} {check['name']}"
    lines = format_entry(label, f"{check['detail']} ({check['seconds']:.2f} s)", _NAMES)
    for text, word in ((check.get("expected"), "expected"), (check.get("observed"), "came")):
        if text:
            lines += format_entry(f"     {word}", text, _NAMES)
    return lines


def _describe_verdict(checks: Iterable[CheckResult]) -> str:
    found = [check["status"] for check in checks]
    failed, skipped = found.count("fail"), found.count("skip")
    passed = f"{found.count('ok')} passed"
    word = "PASSED" if "ok" in found else "NOTHING WAS CHECKED"
    return f"{'FAILED' if failed else word}: {passed}, {failed} failed, {skipped} skipped"
