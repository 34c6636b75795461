"""The verify document as JUnit XML, which continuous integration reads."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from kimi_prov.contract import clean_text

if TYPE_CHECKING:
    from kimi_prov.contract.documents.verify import CheckResult, VerifiedHost, Verify


def format_text(document: Verify) -> str:
    """Write a suite for each host and a case for each check.

    A check that did not run is `skipped`. Characters that XML does not allow are spelt out, as in
    every report.
    """
    root = ElementTree.Element("testsuites", name="kimi-prov verify")
    for name, host in document["hosts"].items():
        root.append(_build_suite(name, host))
    _count(root, [check for host in document["hosts"].values() for check in host["checks"]])
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def _build_suite(name: str, host: VerifiedHost) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=_clean(name))
    _count(suite, host["checks"])
    told: dict[str, list[str]] = {
        "endpoint": [host["endpoint"]],
        "suite": [host.get("suite", "basic")],
        "vantage": [f"{host['vantage']}: {host['vantage_reason']}"],
        "unproven": host.get("unproven") or [],
        "stand-in": host.get("stand_ins") or [],
    }
    properties = ElementTree.SubElement(suite, "properties")
    for key, values in told.items():
        for value in values:
            ElementTree.SubElement(properties, "property", name=key, value=_clean(value))
    for check in host["checks"]:
        suite.append(_build_case(name, check))
    return suite


def _build_case(host: str, check: CheckResult) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname=_clean(f"kimi-prov.verify.{host}"),
        name=_clean(check["name"]),
        time=f"{check['seconds']:.3f}",
    )
    detail = _clean(check["detail"])
    if check["status"] == "skip":
        ElementTree.SubElement(case, "skipped", message=detail)
    elif check["status"] == "fail":
        failure = ElementTree.SubElement(
            case, "failure", message=detail, type=_clean(check["name"])
        )
        lines = [
            f"{word}: {_clean(text)}"
            for text, word in ((check.get("expected"), "expected"), (check.get("observed"), "came"))
            if text
        ]
        failure.text = "\n".join([detail, *lines])
    else:
        ElementTree.SubElement(case, "system-out").text = detail
    return case


def _count(element: ElementTree.Element, checks: list[CheckResult]) -> None:
    statuses = [check["status"] for check in checks]
    seconds = sum(check["seconds"] for check in checks)
    counts = {"tests": len(checks), "failures": statuses.count("fail"), "errors": 0}
    for key, value in {**counts, "skipped": statuses.count("skip")}.items():
        element.set(key, str(value))
    element.set("time", f"{seconds:.3f}")


def _clean(value: object) -> str:
    return clean_text.clean_line(value)
