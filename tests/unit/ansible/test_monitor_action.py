"""What the action of a host that watches sends to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.ansible.plugins.action.kimi_monitor import (
    build_receivers,
    build_targets,
    check_networks,
    map_rank_addresses,
)
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

TARGET = {"address": "10.0.0.1", "port": 9443, "key": "k"}
MAIL = {"email_to": "a@b", "email_from": "c@d", "email_smarthost": "mail:25"}


def test_without_receivers_alerts_go_nowhere() -> None:
    empty = {"webhook_url_file": "", "email_to": "", "email_from": "", "email_smarthost": ""}
    assert build_receivers(empty) == {"webhook_url": None, "email": None}


def test_secrets_come_from_their_files(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("https://hooks.example.com/secret\n")
    (tmp_path / "password").write_text("pass word\n")
    found = build_receivers(
        {
            **MAIL,
            "webhook_url_file": str(tmp_path / "url"),
            "email_username": "u",
            "email_password_file": str(tmp_path / "password"),
        }
    )
    assert found["webhook_url"] == "https://hooks.example.com/secret"
    assert (found["email"]["password"], found["email"]["require_tls"]) == ("pass word", True)


@pytest.mark.parametrize("text", ["ftp://x", "", "https://a\nhttps://b"])
def test_a_file_without_a_url_is_refused_without_its_content(tmp_path: Path, text: str) -> None:
    (tmp_path / "url").write_text(text)
    with pytest.raises(UserError) as told:
        build_receivers({"webhook_url_file": str(tmp_path / "url")})
    assert "monitor_alert_webhook_url_file" in told.value.message
    assert not text or text not in told.value.message


def test_half_of_a_mails_settings_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="monitor_alert_email_from, monitor_alert_email_smarthost"):
        build_receivers({"email_to": "a@b"})


def test_a_host_reads_itself_on_the_loopback_and_keeps_whom_it_did_not_reach() -> None:
    targets: dict[str, Any] = {
        "own": TARGET,
        "same": {**TARGET, "address": "10.0.0.9"},
        "far": TARGET,
    }
    found = build_targets(["own", "same", "far", "away"], targets, "own", addresses={"10.0.0.9"})
    assert found["own"]["address"] == "127.0.0.1"
    assert found["same"]["address"] == "127.0.0.1"
    assert found["far"]["address"] == "10.0.0.1"
    assert found["away"] is None


def test_what_is_no_network_is_refused_by_name() -> None:
    assert check_networks(["10.0.9.5", "fd00::/64"]) == ["10.0.9.5", "fd00::/64"]
    with pytest.raises(UserError, match=r"monitor_networks: 10\.0\.9 is no network"):
        check_networks(["10.0.9"])


def test_a_head_that_watches_itself_reads_its_ranks_on_the_network_of_the_group() -> None:
    members = [{"host": "own", "address": "10.1.0.1"}, {"host": "rank", "address": "10.1.0.2"}]
    members += [{"host": "unknown", "address": None}]
    plan = {"group": {"members": members}, "metrics": {"monitor_local": True}}
    near = map_rank_addresses(plan)
    targets = dict.fromkeys(("own", "rank", "unknown"), TARGET)
    found = build_targets(["own", "rank", "unknown"], targets, "own", addresses=set(), near=near)
    assert {name: row["address"] for name, row in found.items()} == {
        "own": "127.0.0.1",
        "rank": "10.1.0.2",
        "unknown": "10.0.0.1",
    }
    # One of kimi_monitor is let in by the address that kimi_metrics_networks names.
    assert map_rank_addresses({**plan, "metrics": {"monitor_local": False}}) == {}
    assert map_rank_addresses({"group": None, "metrics": None}) == {}
    assert map_rank_addresses({}) == {}
