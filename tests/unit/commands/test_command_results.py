"""What commands print, keep and end with: bad words, reports of several hosts, findings."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import fails, gives, task

from kimi_prov.runner.arguments import KEY_OUT

if TYPE_CHECKING:
    from command_line import Asked, CommandLine, Done, Result

HOST = {
    "ok": True,
    "detail": "fine",
    "provisioned": False,
    "endpoint": "u",
    "vantage": "control",
    "vantage_reason": "r",
    "checks": [],
    "stand_ins": [],
}


def kept_codes(kimi: CommandLine) -> list[tuple[int, int]]:
    """Give exit codes that result.json of each run has: the command's, and the playbook's."""
    kept = [json.loads(path.read_text()) for path in kimi.runs.glob("*/result.json")]
    return [(row["exit_code"], row["playbook_exit_code"]) for row in kept]


def quiet(done: Done) -> Done:
    assert "Traceback" not in done.stderr + done.stdout
    return done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frobnicate"], "has no command"),
        (["apply"], "INVENTORY"),
        (["apply", "nosuch"], "nosuch: there is no such inventory"),
        (["plan", "nosuch", "--format", "xml"], "xml"),
        (["apply", "hosts.yml", "-e", "a=1"], "-e a"),
        (["apply", "hosts.yml", "-e", "@nosuch.yml"], "no such file"),
        (["apply", "hosts.yml", "--limit", "nobody"], "nobody"),
        (["status", "hosts.yml", "--output", "no/such/folder/x"], "--output"),
        (["destroy", "hosts.yml"], "--yes"),
        (["lab", "list", "hosts.yml"], "hosts.yml"),
        (["lab", "ssh"], "INVENTORY"),
        (["probe", "--output", "no/such/x"], "--output"),
        (["probe", "--bundle", "/proc/x.pyz"], "/proc/x.pyz"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(
    kimi: CommandLine, words: list[str], said: str
) -> None:
    kimi.hosts("one")
    done = quiet(kimi.run(*words))
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert kimi.played == []


@pytest.mark.parametrize("words", [[], ["--limit", "b", "--purge-weights"]])
def test_what_destroy_wants_without_a_terminal_is_a_command_that_works(
    kimi: CommandLine, words: list[str]
) -> None:
    def kept(asked: Asked) -> Result:
        return gives({"kept": [f"purge={asked.variables['destroy_purge_weights']}"]})

    kimi.plays(task("kimi_host", kept))
    kimi.hosts("a", "b").rename(kimi.home / "our hosts.yml")
    done = quiet(kimi.run("destroy", "our hosts.yml", *words))
    assert done.returncode == 2
    fix = shlex.split(done.stderr.split("kimi-prov ", 1)[1])
    done = quiet(kimi.run(*fix))
    assert done.returncode == 0, done.stderr
    hosts = words[1].split(",") if words else ["a", "b"]
    assert [line[0] for line in done.stdout.splitlines() if "keeps" in line] == hosts
    assert ("purge=True" in done.stdout) is ("--purge-weights" in words)


@pytest.mark.parametrize("word", ["deploy", "destry", "destory", "DESTROY"])
def test_no_other_word_has_destroy_proposed_for_it(kimi: CommandLine, word: str) -> None:
    done = quiet(kimi.run(word, "x"))
    assert done.returncode == 2
    assert f"has no command '{word}'" in done.stderr
    assert "destroy" not in done.stderr.replace(word, "")


@pytest.mark.parametrize(("severity", "code"), [("warning", 0), ("blocker", 3)])
def test_plan_prints_json_alone_and_exits_3_when_blocked(
    kimi: CommandLine, severity: str, code: int
) -> None:
    found = {"findings": [{"severity": severity, "id": "x"}], "model": {"name": "m"}}
    kimi.plays(task("kimi_plan", gives(found)))
    done = quiet(kimi.run("plan", kimi.hosts("a", "b"), "--format", "json"))
    assert done.returncode == code
    told = json.loads(done.stdout)
    assert told["schema"] == "kimi-prov/plan/v1"
    assert sorted(told["hosts"]) == ["a", "b"]
    assert kept_codes(kimi) == [(code, 0)]


def test_what_a_plugin_finds_on_success_is_shown_and_kept(kimi: CommandLine) -> None:
    row = {
        "id": "firewall.dropped_elsewhere",
        "severity": "warning",
        "source": "nft",
        "title": "Another rule drops",
        "observed": "a rule in chain c drops port 8000",
        "required": "it accepted",
        "fix": "accept it with sk-kimi-canary00",
    }
    of_loop = {"kimi": {"findings": [{**row, "id": "of.loop"}]}}
    kimi.plays(
        task(
            "kimi_status",
            {
                "warnings": ["a rule in chain c drops port 8000: it may be shut", "another matter"],
                "kimi": {"findings": [row, {**row, "severity": "pass", "id": "quiet"}]},
            },
        ),
        task("kimi_status", {"results": [of_loop, of_loop]}),
    )
    done = quiet(kimi.run("apply", kimi.hosts("box")))
    assert done.returncode == 0
    assert (
        "warning: box\n"
        "  why: Another rule drops (firewall.dropped_elsewhere)\n"
        "  found: a rule in chain c drops port 8000\n"
    ) in done.stderr
    assert done.stderr.count("(of.loop)") == 1
    assert "(quiet)" not in done.stderr
    # What plain ansible-playbook is warned of is not said a second time; all else is.
    assert "be shut" not in done.stderr
    assert "warning: box: another matter" in done.stderr
    assert "canary" not in done.stderr
    (path,) = kimi.runs.glob("*/result.json")
    kept = json.loads(path.read_text())["findings"]
    assert [(row["host"], row["id"], row["severity"]) for row in kept] == [
        ("box", "firewall.dropped_elsewhere", "warning"),
        ("box", "quiet", "pass"),
        ("box", "of.loop", "warning"),
    ]


@pytest.mark.parametrize("command", ["verify", "status"])
def test_reports_are_merged_and_a_host_that_fails_decides(kimi: CommandLine, command: str) -> None:
    bad: dict[str, Any] = {**HOST, "ok": False, "detail": "broken"}
    broken = fails("it did not pass", kimi={"code": "failed"}, kimi_document=bad)
    kimi.plays(task(f"kimi_{command}", good=gives(HOST), bad=broken))
    done = quiet(kimi.run(command, kimi.hosts("good", "bad"), "--format", "json"))
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["schema"] == f"kimi-prov/{command}/v1"
    assert told["ok"] is False
    assert {name: host["ok"] for name, host in told["hosts"].items()} == {
        "good": True,
        "bad": False,
    }


BENCH = {
    "ok": True,
    "detail": "measured",
    "normal": None,
    "model": "m",
    "basis": "b",
    "measured_at": "2026-11-21",
    "load": {"average": 0, "busy": False},
    "look_at": [],
    "engine": {"name": "e", "variant": "v", "version": "1"},
    "memory": {"bytes_per_s": 8},
    "layer": {"available": False, "reason": "none"},
    "serve": {
        "input_tokens": 1,
        "output_tokens": 1,
        "levels": [{"concurrency": 1, "aggregate_tok_s": 4}],
    },
    "compared": [],
    "last": None,
    "stand_ins": [],
}


def test_a_second_bench_is_compared_with_the_first_of_the_same_host(kimi: CommandLine) -> None:
    kimi.plays(task("kimi_bench", gives(BENCH)))
    told = []
    for _ in range(2):
        done = quiet(kimi.run("bench", kimi.hosts("a", "b"), "--format", "json"))
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout))
    assert told[0]["schema"] == "kimi-prov/bench/v1"
    assert [host["last"] for host in told[0]["hosts"].values()] == [None, None]
    for host in told[1]["hosts"].values():
        assert {row["name"]: row["change"] for row in host["last"]["rows"]} == {
            "memory": 0.0,
            "1 at once": 0.0,
        }


def test_a_report_may_go_to_a_file(kimi: CommandLine) -> None:
    kimi.plays(task("kimi_status", gives(HOST)))
    done = quiet(kimi.run("status", kimi.hosts("good"), "--output", "out.txt"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "good" in (kimi.home / "out.txt").read_text()


def test_apply_ends_with_what_is_served_and_where_the_time_went(kimi: CommandLine) -> None:
    model = {"name": "kimi-k2-lab", "served_names": ["kimi"], "bytes": 12000000}
    plan = {
        "findings": [],
        "engine": {"name": "vllm", "version": "1.2.3", "variant": "cpu"},
        "model": {**model, "context": 2048, "random_weights": True},
        "proxy": {"port": 8000},
    }
    kimi.plays(task("kimi_plan", gives(plan)), task("command", {"changed": True}))
    done = quiet(kimi.run("apply", kimi.hosts("a")))
    assert done.returncode == 0, done.stderr
    for part in ("changed=1", "https://127.0.0.1:8000/v1", "kimi-k2-lab", "vllm 1.2.3", "in all"):
        assert part in done.stdout
    assert "random weights" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines()[:-2])) <= 80


def test_the_api_keys_come_before_the_administrators_of_pages(kimi: CommandLine) -> None:
    def handed(asked: Asked) -> Result:
        admin = {"email": "admin@lab.test", "password": "canary-page"}
        lines: list[dict[str, Any]] = [{"host": asked.host, "key": "sk-kimi-canary-once"}]
        if asked.host == "page":
            lines.insert(0, {"host": asked.host, "web_admin": admin})
        with Path(asked.environment[KEY_OUT]).open("a") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in lines)
        return {"changed": False}

    kimi.plays(task("kimi_key", handed))
    done = quiet(kimi.run("key", kimi.hosts("page", "new")))
    assert done.returncode == 0
    *keys, last = done.stdout.splitlines()
    assert sorted(keys) == ["new sk-kimi-canary-once", "page sk-kimi-canary-once"]
    assert last == "page admin@lab.test canary-page"
