"""The full suite on a real engine with a made model: what random weights can prove, and faults.

Checks that want sense are not run on random weights; scripts answer them in
tests/unit/on_host/acceptance.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from machines import kimi_prov

from kimi_prov import schemas
from kimi_prov.on_host.acceptance import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ENGINE = "kimi-serve@0.service"


def full(host: Host, code: int, *words: str | Path) -> dict[str, dict[str, Any]]:
    """The rows of a run of the full suite, by name."""
    hosts = (host.inventory, "--limit", host.name, "--suite", "full", "--format", "json")
    done = kimi_prov("verify", *hosts, *words)
    assert done.returncode == code, done.stdout + done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, schemas.load("verify"))
    found = document["hosts"][host.name]
    return {row["name"]: row for row in found["checks"]}


def test_random_weights_pass_what_they_can_and_the_rest_is_told(
    served_host: Host, tmp_path: Path
) -> None:
    file = tmp_path / "result.xml"
    key = served_host.ssh("cat /etc/kimi/keys/verify.key").strip()
    rows = full(served_host, 0, "--junit", file)
    assert rows["facts"]["detail"] == catalogue.MEANINGLESS
    asked = {name: rows[name]["status"] for name in catalogue.NAMES if name in rows}
    passed = {name for name, status in asked.items() if status == "ok"}
    assert passed == {"structured-output", "special-tokens", "chat-template"}, rows
    assert {status for name, status in asked.items() if name not in passed} == {"skip"}
    assert "the engine writes a chat as it does" in rows["chat-template"]["detail"]
    assert key not in file.read_text() + json.dumps(rows)


def test_a_template_that_was_changed_on_the_machine_is_found(served_host: Host) -> None:
    plan = json.loads(served_host.ssh("cat /etc/kimi/plan.json"))
    with kept(served_host, f"{plan['model']['serve_dir']}/chat_template.jinja") as file:
        served_host.ssh(f"sed -i 's/## Return of/## Result of/' {file}")
        row = full(served_host, 1, "--only", "chat-template")["chat-template"]
    assert row["status"] == "fail"
    assert row["expected"] != row["observed"]


def test_a_tokenizer_that_cuts_think_in_pieces_is_found(served_host: Host) -> None:
    """The engine reads the damaged file; the file that says how it should be is put back."""
    plan = json.loads(served_host.ssh("cat /etc/kimi/plan.json"))
    with kept(served_host, f"{plan['model']['serve_dir']}/tokenizer.json") as file:
        served_host.ssh(f'sed -i \'s/"content": "<think>"/"content": "<thinq>"/\' {file}')
        served_host.ssh(f"systemctl restart '{ENGINE}'", timeout=900)
    row = full(served_host, 1, "--only", "special-tokens")["special-tokens"]
    served_host.ssh(f"systemctl restart '{ENGINE}'", timeout=900)
    assert row["status"] == "fail"
    assert "<think>" in row["detail"]
    assert full(served_host, 0, "--only", "special-tokens")["special-tokens"]["status"] == "ok"


@contextmanager
def kept(host: Host, file: str) -> Iterator[str]:
    """Put a file back as it was, time and all."""
    host.ssh(f"cp -a {file} /root/kept")
    try:
        yield file
    finally:
        host.ssh(f"cp -a /root/kept {file} && rm /root/kept")
