"""Machines that somebody used before: what of it is no fault, and what a finding says."""

from __future__ import annotations

from typing import Any

import pytest
from plan_inputs import blocked_by, found, lab_facts, plan

from kimi_prov.contract import paths

SRV = ["/srv", "/srv/kimi", "/srv/kimi/engines", "/srv/kimi/models"]
OURS = {"uid": 997, "gid": 997, "home": "/var/lib/kimi", "shell": "/usr/sbin/nologin"}


def mounted(*rows: dict[str, Any]) -> dict[str, Any]:
    """The plan of a machine with these file systems beside its root."""
    facts = lab_facts()
    facts["filesystems"] += [
        {"device": "x", "fstype": "ext4", "free_bytes": 7 << 40} | r for r in rows
    ]
    return plan(facts)


def rooms(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (row["observed"].rpartition(" ")[2], row["required"].rpartition(" ")[2])
        for row in found(document, "disk.room")
    ]


def test_the_room_is_that_of_the_disk_which_holds_the_files() -> None:
    one = mounted({"mount": "/srv", "holds": SRV})
    assert rooms(one) == [("/srv", "/srv/kimi")]
    two = mounted(
        {"mount": "/srv", "holds": SRV[:3]}, {"mount": "/srv/kimi/models", "holds": SRV[3:]}
    )
    assert rooms(two) == [("/srv/kimi/models", "/srv/kimi/models"), ("/srv", "/srv/kimi/engines")]


def test_a_small_disk_of_the_weights_is_not_made_good_by_a_large_one_of_the_engine() -> None:
    document = mounted(
        {"mount": "/srv", "holds": SRV[:3]},
        {"mount": "/srv/kimi/models", "holds": SRV[3:], "free_bytes": 1 << 20},
    )
    (row,) = [r for r in found(document, "disk.room") if r["severity"] == "blocker"]
    assert row["observed"] == "1.0 MiB free on /srv/kimi/models"
    assert "/srv/kimi/models" in row["fix"]


@pytest.mark.parametrize("options", [[], ["nodev"], ["nodev", "nosuid"]])
def test_a_disk_without_devices_and_setuid_programs_is_right(options: list[str]) -> None:
    assert not blocked_by(mounted({"mount": "/srv", "holds": SRV, "options": options}))


def test_weights_alone_may_lie_where_nothing_runs() -> None:
    row = {"mount": "/srv/kimi/models", "holds": SRV[3:], "options": ["noexec"]}
    assert not blocked_by(mounted({"mount": "/srv", "holds": SRV[:3]}, row))


def test_units_wait_for_the_disk_behind_a_link() -> None:
    linked = {place: f"/data{place}" for place in SRV}
    document = mounted({"mount": "/data", "holds": SRV, "linked": linked})
    assert not blocked_by(document)
    assert document["disk"]["mounts_for"] == [*SRV[2:], *(f"/data{place}" for place in SRV[2:])]


@pytest.mark.parametrize("existed", [None, True, False])
def test_an_account_that_the_first_apply_made_is_no_finding(existed: bool | None) -> None:
    facts = lab_facts()
    facts["kimi"]["accounts"] = {"kimi": {**OURS, "processes": []}, "kimi-proxy": None}
    facts["kimi"]["before"] = None if existed is None else {"user_existed": existed}
    severities = [row["severity"] for row in found(plan(facts), "host.account")]
    assert severities == ([] if existed is False else ["info"])


def test_a_process_that_has_the_number_of_our_own_account_by_chance_is_no_finding() -> None:
    """As of a container: its users are not the machine's."""
    facts = lab_facts()
    facts["kimi"]["accounts"] = {
        name: {**OURS, "processes": ["postgres"]} for name in ("kimi", "kimi-proxy")
    }
    facts["kimi"]["before"] = {"user_existed": False, "proxy_user_existed": True}
    (row,) = found(plan(facts), "host.account")
    assert (row["severity"], row["title"].split()[2]) == ("blocker", "kimi-proxy")


@pytest.mark.parametrize("name", ["kimi-web", "kimi-acme"])
@pytest.mark.parametrize("existed", [None, True, False])
def test_the_accounts_of_the_page_and_of_the_order_are_looked_at(
    name: str, existed: bool | None
) -> None:
    facts = lab_facts()
    facts["kimi"]["accounts"] = {name: {**OURS, "processes": ["postgres"]}}
    key = name.replace("kimi-", "") + "_user_existed"
    facts["kimi"]["before"] = None if existed is None else {key: existed}
    severities = [row["severity"] for row in found(plan(facts), "host.account")]
    assert severities == ([] if existed is False else ["blocker"])


@pytest.mark.parametrize("name", ["kimi-web", "kimi-acme"])
@pytest.mark.parametrize(("home", "severities"), [("/home/site", ["blocker"]), (None, [])])
def test_a_record_of_before_these_accounts_makes_none_of_the_site_s_ours(
    name: str, home: str | None, severities: list[str]
) -> None:
    facts = lab_facts()
    given = {"home": home or paths.LATER_HOMES[name], "processes": ["postgres"]}
    facts["kimi"]["accounts"] = {name: {**OURS, **given}}
    facts["kimi"]["before"] = {"user_existed": False, "proxy_user_existed": False}
    assert [row["severity"] for row in found(plan(facts), "host.account")] == severities


@pytest.mark.parametrize(
    ("offset", "observed"),
    [
        (-3600, "1 hour behind the machine that this runs on"),
        (-3540, "1 hour behind the machine that this runs on"),
        (86400 * 3, "3 days ahead of the machine that this runs on"),
        (-301, "5 minutes behind the machine that this runs on"),
        (-300, None),
        (0, None),
    ],
)
def test_a_clock_is_told_roughly_and_only_where_it_matters(
    offset: int, observed: str | None
) -> None:
    facts = lab_facts()
    facts["clock"] = {"offset_s": offset, "synchronized": None}
    assert [row["observed"] for row in found(plan(facts), "host.clock")] == (
        [observed] if observed else []
    )


def test_a_plan_is_the_same_whatever_the_clock_shows() -> None:
    """The kept plan is this without findings."""
    documents = []
    for offset in (-7200, -3600, 0, 3600):
        facts = lab_facts()
        facts["clock"] = {"offset_s": offset}
        documents.append({**plan(facts), "findings": []})
    assert all(document == documents[0] for document in documents)
