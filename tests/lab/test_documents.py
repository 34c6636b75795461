"""The JSON that the commands give of a real machine, held against the schemas that are shipped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from machines import kimi_prov
from made_certificates import certificate

if TYPE_CHECKING:
    from machines import Host

pytestmark = pytest.mark.lab


def fits(document: Any, name: str) -> None:
    """Raise what is wrong with a document of this name."""
    closed_form.validate(document, name)


def given(host: Host, command: str, code: int, *words: str) -> dict[str, Any]:
    """The document that a command prints of one host."""
    hosts = ("--limit", host.name, host.inventory)
    if command == "check":
        hosts = ("--inventory", host.inventory)
    done = kimi_prov(command, *hosts, "--format", "json", *words)
    assert done.returncode == code, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == f"kimi-prov/{command}/v1"
    return document


def test_check_with_its_facts_and_plans(served_host: Host) -> None:
    document = given(served_host, "check", 0)
    fits(document, "check")
    served = next(row for row in document["targets"] if row["name"] == served_host.name)
    fits(served["facts"], "facts")
    fits(served["plan"], "plan")
    assert served["facts"]["kimi"]["models"], "the facts are of a machine that serves"


def test_plan(served_host: Host) -> None:
    plan = given(served_host, "plan", 0)["hosts"][served_host.name]
    fits(plan, "plan")
    assert plan["findings"]


def test_facts_that_the_machine_itself_prints(served_host: Host) -> None:
    facts = json.loads(served_host.ssh("python3 /srv/kimi/lib/kimi-target.pyz probe"))
    fits(facts, "facts")
    assert facts["host"]["root"] is True


def test_verify_that_passes_and_that_fails(served_host: Host) -> None:
    document = given(served_host, "verify", 0)
    fits(document, "verify")
    assert {row["status"] for row in document["hosts"][served_host.name]["checks"]} >= {"ok"}
    served_host.ssh("systemctl stop kimi-proxy.service")
    try:
        failed = given(served_host, "verify", 1)
    finally:
        served_host.ssh("systemctl start kimi-proxy.service")
    fits(failed, "verify")
    assert failed["ok"] is False


def test_status_of_a_machine_that_serves(served_host: Host) -> None:
    document = given(served_host, "status", 0)
    fits(document, "status")
    assert document["hosts"][served_host.name]["provisioned"] is True


@pytest.mark.parametrize(
    ("days_ago", "days_left", "state"), [(-1, 90, "early"), (90, -1, "expired")]
)
def test_status_fails_where_clients_refuse_the_certificate(
    served_host: Host, days_ago: float, days_left: float, state: str
) -> None:
    public = certificate([served_host.name], days_ago, days_left).partition("-----BEGIN PRIV")[0]
    file = "/etc/kimi/proxy/tls.crt"
    served_host.ssh(f"mv {file} {file}.kept && cat > {file} <<'END'\n{public}\nEND\n")
    try:
        document = given(served_host, "status", 1)
    finally:
        served_host.ssh(f"mv {file}.kept {file}")
    fits(document, "status")
    found = document["hosts"][served_host.name]
    assert found["port"]["certificate"]["state"] == state
    assert found["detail"].startswith("serving; the certificate ")


def test_status_and_verify_of_a_machine_that_nothing_was_done_to(virgin_host: Host) -> None:
    for command in ("status", "verify"):
        document = given(virgin_host, command, 1)
        fits(document, command)
        assert document["ok"] is False
