"""What `status` makes of the findings that a machine reports."""

from __future__ import annotations

from typing import Any

import closed_form
from host_actions import Machine, run_action
from host_documents import SERVING

from kimi_prov.ansible.plugins.action.kimi_status import ActionModule

FAILING = {
    "id": "gpu.pcie_width",
    "observed": "GPU 1: x8 of x16",
    "required": "the width that card and slot have",
    "fix": "seat the card again",
}


def read_status(**more: Any) -> dict[str, Any]:
    machine = {name: value for name, value in SERVING.items() if name != "stand_ins"}
    done = run_action(ActionModule, Machine({**machine, **more}), {})
    document: dict[str, Any] = done["kimi_document"]
    whole = {"schema": "kimi-prov/status/v1", "ok": True, "hosts": {"h": document}}
    closed_form.validate(whole, "status")
    return document


def test_a_finding_gets_its_title_and_source_here() -> None:
    (row,) = read_status(findings=[FAILING])["findings"]
    assert (row["id"], row["observed"]) == ("gpu.pcie_width", FAILING["observed"])
    assert row["title"]
    assert row["source"]


def test_a_finding_of_a_newer_version_hides_neither_the_others_nor_the_status() -> None:
    rows = [{**FAILING, "id": "gpu.of_next_year"}, FAILING]
    assert [row["id"] for row in read_status(findings=rows)["findings"]] == ["gpu.pcie_width"]


def test_a_machine_of_an_earlier_version_reports_none() -> None:
    assert "findings" not in read_status()
