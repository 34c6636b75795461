"""`verify --suite`, `--only`, `--skip` and `--junit`, from the command line to the play."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from command_line import gives, is_away, task

CHECKS = [
    {"name": "chat", "status": "ok", "detail": "2 tokens: \x0bhi\x00", "seconds": 0.5},
    {"name": "image", "status": "skip", "detail": "the model takes no images", "seconds": 0},
    {
        "name": "facts",
        "status": "fail",
        "detail": "11 of 12 facts right; ]]> \x1b[2J & <b>\ud800",
        "expected": "Ottawa",
        "observed": "Toronto \x07\ufffe",
        "seconds": 1.25,
    },
]


@pytest.fixture
def told(kimi):
    """Run verify with words; its exit code is 0, and what the play was given comes back."""

    def verified(asked):
        selection = json.dumps(asked.variables.get("verify_suite", {}))
        made = {"ok": True, "endpoint": selection, "vantage": "control", "vantage_reason": ""}
        return gives(
            {**made, "checks": CHECKS, "stand_ins": [], "unproven": ["how well"], "suite": "full"}
        )

    kimi.plays(task("kimi_verify", verified))
    inventory = kimi.hosts("one")

    def run(*words):
        done = kimi.run("verify", inventory, *words)
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_what_is_chosen_reaches_the_play(told):
    done = told("--suite", "full", "--only", "tool-*", "--skip", "tool-rounds", "--format", "json")
    (host,) = json.loads(done.stdout)["hosts"].values()
    chosen = {"suite": "full", "only": ["tool-*"], "leave": ["tool-rounds"]}
    assert json.loads(host["endpoint"]) == chosen
    (host,) = json.loads(told("--format", "json").stdout)["hosts"].values()
    assert json.loads(host["endpoint"])["suite"] == "basic"


def test_lengths_are_chosen_by_name(told):
    words = ("--suite", "full", "--only", "needles-160k", "--skip", "needles-?0k")
    done = told(*words, "--format", "json")
    (host,) = json.loads(done.stdout)["hosts"].values()
    assert json.loads(host["endpoint"])["only"] == ["needles-160k"]


def test_junit_tells_passed_failed_and_not_run_apart_whatever_an_answer_holds(told, tmp_path):
    file = tmp_path / "result.xml"
    done = told("--junit", file)
    root = ElementTree.parse(file).getroot()  # noqa: S314 - our own
    assert root.attrib | {"time": ""} == {
        "name": "kimi-prov verify",
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
        "time": "",
    }
    (suite,) = root
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert cases["image"].find("skipped").get("message") == "the model takes no images"
    assert cases["image"].find("failure") is None
    failure = cases["facts"].find("failure")
    assert "11 of 12 facts right; ]]> \\x1b[2J & <b>" in failure.get("message")
    assert failure.text.splitlines()[1:] == ["expected: Ottawa", "came: Toronto \\x07\\ufffe"]
    assert [child.tag for child in cases["chat"]] == ["system-out"]
    values = {row.get("name"): row.get("value") for row in suite.iter("property")}
    assert values["unproven"] == "how well"
    # The report itself is where it always is, and says the same.
    text = " ".join(done.stdout.split())
    assert "expected Ottawa" in text
    assert "came Toronto" in text
    assert "FAILED: 1 passed, 1 failed, 1 skipped" in text


def test_a_run_without_a_host_leaves_no_earlier_junit(kimi, tmp_path):
    file = tmp_path / "result.xml"
    file.write_text("<testsuites/>")
    done = kimi.run("verify", kimi.hosts("one"), "--limit", "nobody", "--junit", file)
    assert done.returncode == 2, done.stderr
    assert not file.exists()


def test_a_host_that_was_not_reached_is_a_failure_in_junit(kimi, tmp_path):
    refused = "ssh: connect to host 127.0.0.1 port 1: Connection refused"
    kimi.plays(task("ping", is_away(f"Failed to connect to the host via ssh: {refused}")))
    file = tmp_path / "result.xml"
    done = kimi.run("verify", kimi.hosts("gone"), "--junit", file)
    assert done.returncode == 4, done.stderr
    (case,) = ElementTree.parse(file).getroot().iter("testcase")  # noqa: S314 - our own
    assert case.get("name") == "machine"
    assert case.find("failure") is not None


@pytest.mark.parametrize(
    ("words", "said", "fix"),
    [
        (("--only", "facts"), "--only facts: no check of the suite basic", "--suite full"),
        (("--suite", "full", "--skip", "fcats"), "--skip fcats", "correct the name"),
        (("--suite", "full", "--skip", "needles-x"), "--skip needles-x", "correct the name"),
        (("--only", "needles-160k"), "--only needles-160k", "--suite full"),
        (("--suite", "all"), "'all' is not one of", ""),
        (("--junit", "no/such/folder/x.xml"), "--junit no/such/folder/x.xml", "name a file"),
        (("--junit", "x.xml", "--output", "./x.xml"), "--output names the same file", "another"),
        (("--junit", "."), "it is a folder", "name a file"),
    ],
)
def test_wrong_words_are_refused_before_anything_runs(kimi, words, said, fix):
    done = kimi.run("verify", kimi.hosts("one"), *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert fix in done.stderr
    assert not kimi.runs.exists()
