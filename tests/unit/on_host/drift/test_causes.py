"""Since when and through what, from logs that a Debian 12 host wrote."""

from __future__ import annotations

import calendar
import json
import time
from pathlib import Path

import pytest

from kimi_prov.on_host.drift import causes
from kimi_prov.on_host.drift.difference import Account

DATA = Path(__file__).parents[3] / "data" / "drift"


def utc(text):
    """The recorded host's clock."""
    return calendar.timegm(time.strptime(" ".join(text.split()), "%Y-%m-%d %H:%M:%S"))


def at(clock):
    return utc(f"2026-11-24 {clock}")


@pytest.fixture(scope="module")
def logs():
    told = causes.parse_journal((DATA / "journal.json").read_text())
    return causes.Logs(
        causes.parse_dpkg_log((DATA / "dpkg.log").read_text(), utc),
        causes.parse_apt_log((DATA / "history.log").read_text(), utc),
        told.commands,
        told.sessions,
        told.accounts,
    )


def test_a_packages_last_change_has_its_command_and_who_asked_for_it(logs):
    found = causes.find_package_cause("numactl", logs)
    assert found.since == at("02:45:45")
    assert found.by == (
        "apt-get install numactl=2.0.16-1, by operator (upgrade 2.0.16-1+own1 2.0.16-1)"
    )


def test_an_earlier_change_is_not_the_last_one(logs):
    until = causes.Logs(tuple(c for c in logs.changes if c.at < at("02:40:00")), logs.transactions)
    found = causes.find_package_cause("numactl", until)
    assert (found.since, found.by) == (
        at("02:30:41"),
        "apt-get install ./own.deb (upgrade 2.0.16-1 2.0.16-1+own1)",
    )


def test_a_package_that_dpkg_alone_changed_is_told_so(logs):
    alone = causes.Logs(logs.changes, ())
    assert "not through apt" in causes.find_package_cause("numactl", alone).by
    assert causes.find_package_cause("nobody-has-this", logs) == causes.Cause()


def test_options_and_what_they_hold_are_not_shown(logs):
    told = [run.description for run in logs.transactions]
    assert "Proxy" not in "".join(told)
    assert causes.shorten_command(
        "apt-get -o A::Proxy=http://u:geheim@h install x http://u:geheim@h/"
    ) == ("apt-get install x")


def test_an_account_names_the_tool_and_who_was_there(logs):
    found = causes.find_account_cause(Account("kimi", fields=(("shell", "/bin/bash"),)), logs)
    assert found.since == at("02:29:11")
    assert found.by == "usermod, while root from 10.93.101.1 was logged in"


# As shadow 4.13 and 4.17 write it.
USERMOD = "change user 'kimi' shell from '/usr/sbin/nologin' to '/bin/bash'"
ADDED = "add 'operator' to group 'kimi'"


@pytest.mark.parametrize(
    ("account", "messages", "told"),
    [
        # Another group's change names the account, and is not what changed it.
        (
            Account("kimi", fields=(("shell", "/bin/bash"),)),
            [("usermod", USERMOD), ("usermod", "add 'kimi' to group 'docker'")],
            1,
        ),
        (Account("kimi", joined=("operator",)), [("gpasswd", ADDED), ("usermod", USERMOD)], 1),
        (
            Account("kimi", joined=("operator",)),
            [
                ("gpasswd", "user operator added by root to group kimi"),
                ("userdel", "delete user 'x'"),
            ],
            1,
        ),
        (
            Account("kimi", joined=("operator",)),
            [("gpasswd", "members of group kimi set by root to eve,operator")],
            1,
        ),
        (Account("kimi", left=("op",)), [("usermod", "delete 'op' from group 'kimi'")], 1),
        # What is there came otherwise than through a tool: another shell, another group, a file.
        (Account("kimi", fields=(("shell", "/bin/zsh"),)), [("usermod", USERMOD)], 0),
        (Account("kimi", fields=(("home", "/bin/bash"),)), [("usermod", USERMOD)], 0),
        (Account("kimi", joined=("op",)), [("gpasswd", ADDED)], 0),
        (Account("kim", joined=("operator",)), [("gpasswd", ADDED)], 0),
        (
            Account("kimi", joined=("operator",)),
            [("gpasswd", ADDED.replace("kimi", "kimi-web"))],
            0,
        ),
        (
            Account("kimi", joined=("operator",)),
            [("gpasswd", "user operator added by root to group kimi-web")],
            0,
        ),
        (Account("kimi", gone=True), [("userdel", "delete user 'kimi'"), ("usermod", ADDED)], 1),
        (
            Account("kimi", fields=(("uid", "1500"), ("shell", "/bin/sh"))),
            [
                ("userdel", "delete user 'kimi'"),
                (
                    "useradd",
                    "new user: name=kimi, UID=1500, GID=9, home=/x, shell=/bin/sh, from=none",
                ),
            ],
            2,
        ),
        # The last that made it so.
        (
            Account("kimi", fields=(("shell", "/bin/bash"),)),
            [
                ("usermod", USERMOD),
                ("usermod", USERMOD),
                ("chsh", "changed user 'eve' shell to 'x'"),
            ],
            2,
        ),
    ],
)
def test_an_account_is_told_by_what_made_it_so_or_not_at_all(account, messages, told):
    rows = tuple((at, tool, text) for at, (tool, text) in enumerate(messages, 1))
    found = causes.find_account_cause(account, causes.Logs(accounts=rows))
    assert (found.since, found.by) == ((told, messages[told - 1][0]) if told else (None, None))


def test_a_file_is_told_by_the_command_that_named_it(logs):
    found = causes.find_cause_at(at("02:30:42"), "x", ("/etc/kimi/firewall.nft",), logs)
    assert found.by == "tee, by operator through sudo"


def test_a_file_that_nobody_named_is_told_by_what_ran_or_who_was_there(logs):
    apt = causes.find_cause_at(at("02:30:41"), "x", ("/etc/kimi/plan.json",), logs)
    assert apt.by == "while this ran: apt-get install ./own.deb"
    there = causes.find_cause_at(at("02:29:05"), "x", ("/etc/kimi/plan.json",), logs)
    assert there.by == "while root from 10.93.101.1 was logged in"
    assert causes.find_cause_at(at("02:20:00"), "x", (), logs).by is None


def test_a_word_of_a_command_is_a_whole_one(logs):
    assert causes.find_command_cause(("nft",), logs, 0) == causes.Cause()
    assert causes.find_command_cause(("tee", "firewall.nft"), logs, 0).since == at("02:30:42")
    assert (
        causes.find_command_cause(("tee", "firewall.nft"), logs, at("02:31:00")) == causes.Cause()
    )
    stop = causes.Logs(
        commands=(causes.Command(9, "eve", "/bin/systemctl stop kimi-fetch.service"),)
    )
    assert causes.find_command_cause(("systemctl", "kimi-fetch"), stop, 0).by == (
        "systemctl, by eve through sudo"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no journal at all",
        json.dumps({"MESSAGE": [1, 2], "SYSLOG_IDENTIFIER": "sudo", "__REALTIME_TIMESTAMP": "1"}),
        json.dumps({"MESSAGE": "x"}),
        "[]",
    ],
)
def test_a_journal_that_is_none_tells_nothing(text):
    assert causes.parse_journal(text) == causes.Logs()


def test_a_log_that_is_cut_is_read_as_far_as_it_goes():
    text = (DATA / "history.log").read_text()
    cut = text[: text.rindex("End-Date")]
    assert [run.start for run in causes.parse_apt_log(cut, utc)] == [
        run.start for run in causes.parse_apt_log(text, utc)
    ]
    assert causes.parse_apt_log("Start-Date: never\nInstall: a:amd64 (1)\n", utc) == ()
