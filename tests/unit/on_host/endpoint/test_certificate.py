from __future__ import annotations

import pytest

from kimi_prov.on_host.endpoint import certificate
from kimi_prov.on_host.endpoint.certificate import Certificate

DAY = 86400
START = 1_800_000_000
PROBLEM = {"kind": "challenge", "message": "port 80 was not reached", "fix": "open port 80"}
FAILED = {"tried": START, "problem": PROBLEM}
WANTED = {"directory_url": "https://ca.example.com/dir", "names": ["a.example.com"]}


def lasting(days: float) -> Certificate:
    return Certificate(START, START + int(days * DAY), ("a.example.com",), "CN=Example CA")


def at(days: float) -> int:
    return START + int(days * DAY)


@pytest.mark.parametrize(
    ("mode", "days", "order", "now", "state", "told", "fix"),
    [
        ("files", 90, {}, 10, "ok", "in 80 days", None),
        ("files", 90, {}, 70, "expiring", "in 20 days", "kimi_tls_cert_file"),
        ("files", 90, {}, 91, "expired", "it ended on", "kimi_tls_cert_file"),
        # what came of an order is of no account to files
        ("files", 90, FAILED, 10, "ok", "in 80 days", None),
        ("self-signed", 3650, {}, 3000, "ok", "in 650 days", None),
        ("self-signed", 3650, {}, 3630, "expiring", "in 20 days", "kimi-prov apply"),
        ("acme", 90, {"tried": START, "problem": None}, 65, "ok", "in 25 days", None),
        ("acme", 90, {"tried": START}, 70, "expiring", "no renewal was tried", "kimi-acme.timer"),
        ("acme", 90, FAILED, 61, "failing", "failed: port 80 was not reached", "open port 80"),
        ("acme", 90, FAILED, 75, "expiring", "in 15 days; the order of 2027-01-15", "open port 80"),
        ("acme", 90, FAILED, 90, "expired", "failed: port 80 was not reached", "open port 80"),
        # one that lasts six days is not told of three weeks ahead
        ("acme", 6, {"tried": START}, 4, "ok", "in 2 days", None),
        ("acme", 6, {"tried": START}, 5, "expiring", "in 24 hours", "kimi-acme.timer"),
    ],
)
def test_its_end_and_failing_renewals_are_told_weeks_ahead(
    mode, days, order, now, state, told, fix
):
    found = certificate.judge_certificate(lasting(days), mode, order, at(now))
    assert found["state"] == state
    assert told in found["detail"]
    assert (found["fix"] is None) if fix is None else (fix in found["fix"])


@pytest.mark.parametrize("mode", ["files", "self-signed", "acme"])
def test_one_that_is_not_valid_yet_is_told_with_both_times(mode):
    found = certificate.judge_certificate(lasting(90), mode, {}, at(-2))
    assert found["state"] == "early"
    assert certificate.format_time(at(0)) in found["detail"]
    assert certificate.format_time(at(-2)) in found["detail"]
    assert "date -u" in found["fix"]


def test_no_certificate_at_all_is_told_with_its_cause():
    found = certificate.judge_certificate(None, "acme", FAILED, at(0))
    assert found["state"] == "absent"
    assert found["detail"].endswith("failed: port 80 was not reached")


@pytest.mark.parametrize(
    ("found", "issued", "now", "why"),
    [
        (None, {}, 0, "there is no certificate yet"),
        (lasting(90), WANTED, 59, ""),
        (lasting(90), WANTED, 60, "it ends on"),
        (lasting(6), WANTED, 3, ""),
        (lasting(6), WANTED, 4, "it ends on"),
        (lasting(90), {**WANTED, "names": ["b.example.com"]}, 0, "other names are set"),
        (lasting(90), {**WANTED, "directory_url": "https://other/dir"}, 0, "another certificate"),
        # the record was lost: what it was ordered for is not known
        (lasting(90), {}, 0, "another certificate"),
    ],
)
def test_one_is_ordered_with_a_third_of_its_life_left_and_where_something_else_is_wanted(
    found, issued, now, why
):
    told = certificate.explain_order(found, issued, WANTED, at(now))
    assert told.startswith(why)
    assert bool(told) == bool(why)


def test_the_order_of_names_orders_nothing():
    names = ["a.example.com", "b.example.com"]
    wanted, issued = {**WANTED, "names": names}, {**WANTED, "names": names[::-1]}
    assert certificate.explain_order(lasting(90), issued, wanted, at(0)) == ""


def test_status_tells_of_the_last_order_under_acme_alone():
    shown = certificate.describe_certificate(lasting(90), "acme", FAILED, at(1))
    assert shown["not_after"] == "2027-04-15T08:00:00Z"
    assert shown["last_order"] == {
        "tried": "2027-01-15T08:00:00Z",
        "ok": False,
        "kind": "challenge",
        "detail": "port 80 was not reached",
        "fix": "open port 80",
    }
    assert (
        certificate.describe_certificate(lasting(90), "files", FAILED, at(1))["last_order"] is None
    )
    assert certificate.describe_certificate(None, "acme", {}, at(1))["last_order"] is None
