"""`kimi-prov stop`, `start` and `restart`: what is told of each host, as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

import closed_form
import pytest
from command_line import fails, gives, task

from kimi_prov.ansible.plugins.action.kimi_lifecycle import build_document

START = {"at": "2026-11-24T06:00:00Z", "seconds": 61.5, "held": "RAM disk", "by": "start"}
MARK = {"state": "stopped", "since": "2026-11-24T06:00:00Z"}
# What the machine answers to a step, and what was begun before.
STEPS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "stop": ("outcome", {"cut": 1, "seconds": 3.2, "mark": MARK}, {}),
    "start": ("started", {"start": START}, {"was": "stopped"}),
    "restart": ("outcome", {"cut": 0, "seconds": 130.0, "mark": None}, {}),
    # Hosts of a group stop and start together.
    "restart of a group": ("started", {"start": START}, {"was": "stopped"}),
}
TEXTS = {
    "stop": "stopped in 3.2 s, 1 request cut",
    "start": "it serves: the model answered after 1:02 (the weights were in the RAM disk)",
    "restart": "restarted in 2:10, no request was cut",
    "restart of a group": "it serves: the model answered after 1:02",
}


def document_of(name: str) -> dict[str, Any]:
    """What the action makes of the machine's answer."""
    step, told, began = STEPS[name]
    document: dict[str, Any] = build_document(step, told, began)["kimi_document"]
    return document


@pytest.mark.parametrize("name", STEPS)
def test_each_host_is_told_as_a_document_and_as_text(kimi, name):
    command = name.split()[0]
    told = document_of(name)
    not_stopped = fails("the engine was not stopped")
    kimi.plays(task("kimi_lifecycle", good=gives(told), bad=not_stopped))
    done = kimi.run(command, kimi.hosts("good", "bad"), "--format", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    closed_form.validate(found, command)
    assert found["ok"] is False
    assert found["hosts"]["good"] == told
    assert found["hosts"]["bad"] == {"ok": False, "detail": "the engine was not stopped"}
    text = kimi.run(command, kimi.hosts("good"))
    assert text.returncode == 0
    assert f"good: {TEXTS[name]}" in text.stdout
    # What comes next is no part of the report.
    assert ("next:  kimi-prov start" in text.stderr) == (command == "stop")


def test_a_report_goes_to_a_file(kimi, tmp_path):
    kimi.plays(task("kimi_lifecycle", gives(document_of("stop"))))
    file = tmp_path / "told.json"
    done = kimi.run("stop", kimi.hosts("good"), "--format", "json", "--output", file)
    assert (done.returncode, done.stdout) == (0, "")
    closed_form.validate(json.loads(file.read_text()), "stop")
    refused = kimi.run("stop", kimi.hosts("good"), "--output", tmp_path / "no" / "such")
    assert refused.returncode == 2
