"""The full suite on a real engine with a made model: what random weights can prove, and faults.

Checks that want sense are not run on random weights; scripts answer them in
tests/unit/on_host/acceptance.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from full_suite import kept, restart, rows

from kimi_prov.on_host.acceptance import catalogue

if TYPE_CHECKING:
    from pathlib import Path

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def test_random_weights_pass_what_they_can_and_the_rest_is_told(
    served_host: Host, tmp_path: Path
) -> None:
    file = tmp_path / "result.xml"
    key = served_host.ssh("cat /etc/kimi/keys/verify.key").strip()
    found = rows(served_host, 0, "--junit", file)
    assert found["facts"]["detail"] == catalogue.MEANINGLESS
    asked = {name: found[name]["status"] for name in catalogue.NAMES if name in found}
    passed = {name for name, status in asked.items() if status == "ok"}
    assert passed == {"structured-output", "special-tokens", "chat-template"}, found
    assert {status for name, status in asked.items() if name not in passed} == {"skip"}
    assert "the engine writes a chat as it does" in found["chat-template"]["detail"]
    assert key not in file.read_text() + json.dumps(found)


def test_a_template_that_was_changed_on_the_machine_is_found(served_host: Host) -> None:
    plan = json.loads(served_host.ssh("cat /etc/kimi/plan.json"))
    with kept(served_host, f"{plan['model']['serve_dir']}/chat_template.jinja") as file:
        served_host.ssh(f"sed -i 's/## Return of/## Result of/' {file}")
        row = rows(served_host, 1, "--only", "chat-template")["chat-template"]
    assert row["status"] == "fail"
    assert row["expected"] != row["observed"]


def test_a_tokenizer_that_cuts_think_in_pieces_is_found(served_host: Host) -> None:
    """The engine reads the damaged file; the file that says how it should be is put back."""
    plan = json.loads(served_host.ssh("cat /etc/kimi/plan.json"))
    with kept(served_host, f"{plan['model']['serve_dir']}/tokenizer.json") as file:
        served_host.ssh(f'sed -i \'s/"content": "<think>"/"content": "<thinq>"/\' {file}')
        restart(served_host)
    row = rows(served_host, 1, "--only", "special-tokens")["special-tokens"]
    restart(served_host)
    assert row["status"] == "fail"
    assert "<think>" in row["detail"]
    assert rows(served_host, 0, "--only", "special-tokens")["special-tokens"]["status"] == "ok"
