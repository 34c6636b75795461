"""`kimi-prov logs`: what is refused, what is asked of the machines, and how it ends."""

import time

import gathering
import pytest
from command_line import task

from kimi_prov.commands.logs import find_units, parse_since
from kimi_prov.errors import UserError

START_US = 1_760_000_000_000_000
NOW = 1_760_100_000.0


def entries(*ats, text="line"):
    return [
        {
            "time_us": START_US + at,
            "unit": "kimi-proxy.service",
            "priority": 6,
            "message": f"{text} {at}",
        }
        for at in ats
    ]


@pytest.fixture
def machines(kimi):
    def make(**told):
        kimi.plays(task("kimi_logs", gathering.report_logs(told)))
        return kimi.hosts(*told)

    return make


def test_a_host_that_fails_hides_no_other(kimi, machines):
    failed = {"failed": True, "msg": "x", "kimi": {"code": "failed", "message": "no journal"}}
    inventory = machines(a={"entries": entries(1)}, b={"entries": [], "result": failed})
    done = kimi.run("logs", inventory)
    assert done.returncode == 1
    assert done.stdout.endswith(" a proxy: line 1\n")
    assert "no journal" in done.stderr


def test_secrets_of_the_inventory_are_masked(kimi, machines):
    words = "become-canary-1 sk-kimi-canary0000 and more"
    inventory = machines(a={"entries": entries(1, text=words)})
    inventory.write_text(
        inventory.read_text().replace("a: {}", "a: {ansible_become_password: become-canary-1}")
    )
    done = kimi.run("logs", inventory)
    assert "and more" in done.stdout
    assert "canary" not in done.stdout + done.stderr


def test_a_file_is_written_whole(kimi, machines):
    inventory = machines(a={"entries": entries(1, 2)})
    done = kimi.run("logs", inventory, "--output", "kept.log")
    assert done.returncode == 0
    assert done.stdout == ""
    assert len((kimi.home / "kept.log").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--unit", "sshd"], "kimi-prov has no unit of that name"),
        (["--since", "yesterday-ish"], "this is no time"),
        (["--follow", "--output", "x.log"], "--follow never ends"),
        (["--lines", "0"], "0 is not in the range"),
    ],
)
def test_what_is_refused_before_a_machine_is_asked(kimi, machines, words, said):
    done = kimi.run("logs", machines(a={"entries": []}), *words)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert not kimi.runs.exists()


def test_a_time_is_so_long_ago_or_a_clock_s(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        assert parse_since("10min", NOW) == NOW - 600
        assert parse_since("2h ago", NOW) == NOW - 7200
        assert parse_since("3d", NOW) == NOW - 259_200
        assert parse_since("2025-10-10", NOW) == 1_760_054_400
        assert parse_since("2025-10-10 12:30", NOW) == 1_760_099_400
        assert parse_since("12:30", NOW) == 1_760_099_400
        assert parse_since("999999d", NOW) == 1
    finally:
        monkeypatch.undo()
        time.tzset()
    for odd in ("", "ten", "5 parsecs", "2025-13-01", "25:00", "99999-01-01"):
        with pytest.raises(UserError, match="this is no time"):
            parse_since(odd, NOW)


def test_units_are_known_by_short_names():
    assert find_units(["proxy", "serve", "kimi-proxy.service"]) == [
        "kimi-proxy.service",
        "kimi-serve@*.service",
    ]
    everything = find_units([])
    assert "kimi-serve@*.service" in everything
    assert "srv-kimi-ram.mount" in everything
    assert "kimi-serve@.service" not in everything
