"""Each known trouble is recognised in what was recorded of it, and in nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
import yaml

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.contract import sizes, unit_names
from kimi_prov.contract.documents.diagnose import Diagnosis
from kimi_prov.monitoring import alerts
from kimi_prov.operate.diagnosis import evidence
from kimi_prov.operate.diagnosis.rules import RULES, run_rules
from kimi_prov.planner.registry import DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORDED = Path(__file__).resolve().parents[2] / "data" / "recordings" / "diagnose"
FOLDERS = sorted(path.parent for path in RECORDED.glob("*/note.yaml"))
UNIT = unit_names.build_serve_name(0)
START_US = 1_760_000_000_000_000
READY = "ready after 312 s"


def lines(text: str, unit: str = UNIT, start: int = START_US) -> dict[str, Any]:
    rows = text.splitlines()
    return {
        "cut": False,
        "entries": [
            {"time_us": start + number * 1000, "unit": unit, "priority": 6, "message": row}
            for number, row in enumerate(rows)
        ],
    }


def gathered(folder: Path | None = None, *after: str, ok: bool = False) -> dict[str, Any]:
    """What a machine gathered: a folder's files, and lines of the engine after them."""

    def text(name: str) -> str:
        file = folder / name if folder else None
        return file.read_text() if file and file.exists() else ""

    engine = "\n".join(["INFO: an engine starts", *text("engine.log").splitlines(), *after])
    found: dict[str, Any] = {
        "status": {"ok": ok, "provisioned": True, "detail": "serving" if ok else "not serving yet"},
        "plan": json.loads(text("plan.json") or "{}"),
        "logs": {UNIT: lines(engine)},
        "kernel": lines(text("kernel.log"), "kernel", START_US - 10**9),
        "metrics": [],
        "missing": {},
    }
    if text("metrics.txt"):
        later = text("metrics-later.txt") or None
        row = {"unit": UNIT, "first": text("metrics.txt"), "second": later, "apart_s": 3.0}
        found["metrics"] = [row]
    return found


def found(*arguments: Any, **options: Any) -> dict[str, Any]:
    rows = run_rules(evidence.read_evidence(gathered(*arguments, **options)))
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_recorded_trouble_is_recognised_and_no_other(folder: Path) -> None:
    note = yaml.safe_load((folder / "note.yaml").read_text())
    assert set(note) == {"source", "excerpt", "ours", "severity"}
    assert note["source"].startswith("github.com/")
    rows = found(folder)
    assert list(rows) == [f"diagnose.{folder.name}"]
    (row,) = rows.values()
    assert row["severity"] == note["severity"]
    closed_form.validate_part(row, Diagnosis)


def test_every_rule_has_a_recording() -> None:
    recorded = {f"diagnose.{folder.name}" for folder in FOLDERS}
    # What is down is known of systemd, what hung of the watchdog, what rests of its mark, what is
    # full of the kernel, and whom a gateway leaves out of its proxy.
    of_machine = ("down", "hang", "resting", "disk_full", *OF_GATEWAY)
    rules = recorded | {f"diagnose.{name}" for name in of_machine}
    assert set(RULES) <= rules
    assert rules - set(RULES) <= {row.id for row in load_catalogue().troubles}


OF_GATEWAY = ("gateway_split", "gateway_no_machine", "gateway_machine_out", "gateway_ahead")


def gateway(*states: str, warnings: Sequence[str] = (), split: str = "") -> dict[str, str]:
    """Severity of each finding of a gateway that sees machines so."""
    rows = [{"host": f"gpu{at}", "state": state} for at, state in enumerate(states, 1)]
    told = gathered(ok=set(states) == {"up"})
    told["status"]["gateway"] = {"hosts": rows, "warnings": list(warnings)}
    return {row["id"]: row["severity"] for row in run_rules(evidence.read_evidence(told, split))}


@pytest.mark.parametrize(
    ("states", "finding"),
    [
        (("up", "up"), {}),
        (("up", "down"), {"diagnose.gateway_machine_out": "warning"}),
        (("unknown", "down"), {"diagnose.gateway_no_machine": "blocker"}),
        ((), {}),
    ],
)
def test_whom_a_gateway_leaves_out_is_told(
    states: tuple[str, ...], finding: dict[str, str]
) -> None:
    assert gateway(*states) == finding


def test_what_a_gateway_says_ahead_and_who_else_has_its_address_are_told() -> None:
    told = gateway("up", warnings=["the certificate of gpu1 ends in 3 days"], split="both have it")
    assert told == {
        "diagnose.gateway_split": "blocker",
        "diagnose.gateway_ahead": "warning",
    }


@pytest.mark.parametrize(
    ("ok", "free", "size", "severity"),
    [
        (True, 0, 12 << 30, "warning"),
        (False, 0, 12 << 30, "blocker"),
        (True, 1 << 30, 12 << 30, None),
        # Room for days.
        (True, 100 << 30, 4 << 40, None),
    ],
)
def test_a_disk_without_room_is_told(ok: bool, free: int, size: int, severity: str | None) -> None:
    told = gathered(ok=ok)
    told["status"]["disks"] = [
        {"path": "/srv/kimi", "size_bytes": 4 << 40, "free_bytes": 2 << 40},
        {"path": "/var/lib/kimi", "size_bytes": size, "free_bytes": free},
    ]
    rows = {row["id"]: row for row in run_rules(evidence.read_evidence(told))}
    if severity is None:
        assert "diagnose.disk_full" not in rows
    else:
        assert rows["diagnose.disk_full"]["severity"] == severity
        assert rows["diagnose.disk_full"]["observed"].startswith("/var/lib/kimi: 0 B of ")


def test_the_alert_on_disks_has_the_same_bounds() -> None:
    (alert,) = (row for row in alerts.load() if row.name == "KimiDiskFull")
    assert f"< {sizes.FULL_SHARE} * max" in alert.expression
    assert float(alert.expression.rpartition("< ")[2]) == sizes.FULL_BYTES


def test_the_status_finding_of_failing_hardware_is_told_again() -> None:
    told = gathered(ok=True)
    row = {"observed": "GPU 1: x8 of x16", "required": "x16", "fix": "seat the card again"}
    unknown = [{"id": "gpu.memory", **row}, {"id": "gpu.of_next_year", **row}, None, "text"]
    told["status"]["findings"] = [{"id": "gpu.pcie_width", **row}, *unknown]
    (found,) = run_rules(evidence.read_evidence(told))
    assert (found["id"], found["severity"]) == ("gpu.pcie_width", "warning")
    assert (found["observed"], found["fix"]) == (row["observed"], row["fix"])
    closed_form.validate_part(found, Diagnosis)


HANG = {
    "unit": UNIT,
    "at": "2026-11-24T06:27:42Z",
    "why": "no step for 120 s while 2 requests wait or run",
    "done": "restarted",
}


@pytest.mark.parametrize(
    ("again_s", "bundles", "serving", "severity"),
    [(115.0, 1, True, "info"), (115.0, 2, True, "warning"), (None, 1, False, "blocker")],
)
def test_what_the_watchdog_saw_is_told_by_what_came_of_it(
    again_s: float | None, bundles: int, serving: bool, severity: str
) -> None:
    told = gathered(None, READY, ok=serving)
    told["status"]["watchdog"] = {"last_hang": {**HANG, "served_again_s": again_s}}
    told["hangs"] = [{"name": f"hang-{number}", "summary": {}} for number in range(bundles)]
    (row,) = (
        row for row in run_rules(evidence.read_evidence(told)) if row["id"] == "diagnose.hang"
    )
    assert row["severity"] == severity
    assert HANG["why"] in row["observed"]
    assert set(RULES) == {name for name in DEFINITIONS if name.startswith("diagnose.")}


def test_a_line_that_was_over_when_the_engine_answered_is_told_as_such() -> None:
    trouble = RECORDED / "ptx"
    assert found(trouble)["diagnose.ptx"]["severity"] == "blocker"
    assert found(trouble, ok=True)["diagnose.ptx"]["severity"] == "warning"
    assert found(trouble, READY, ok=True)["diagnose.ptx"]["severity"] == "info"
    # It answered, and then it came again.
    again = (trouble / "engine.log").read_text().splitlines()[-1]
    row = found(trouble, READY, again)["diagnose.ptx"]
    assert row["severity"] == "blocker"
    assert "(2 times)" in row["observed"]


def test_the_kernels_message_is_over_once_every_engine_answered_after_it() -> None:
    trouble = RECORDED / "host_memory"
    assert found(trouble, ok=True)["diagnose.host_memory"]["severity"] == "warning"
    assert found(trouble, READY, ok=True)["diagnose.host_memory"]["severity"] == "info"


def test_an_engine_that_waits_for_a_minute_or_two_is_no_trouble() -> None:
    """vLLM writes the line while it compiles, too."""
    block = (RECORDED / "broadcast_block" / "engine.log").read_text().splitlines()
    assert found(None, *block[:2]) == {}
    assert list(found(None, *block[:3])) == ["diagnose.broadcast_block"]


def test_requests_that_stand_still_in_an_engine_that_waits_block() -> None:
    block = (RECORDED / "broadcast_block" / "engine.log").read_text().splitlines()
    rows = found(RECORDED / "no_progress", READY, *block, ok=True)
    assert rows["diagnose.no_progress"]["severity"] == "blocker"


def test_a_long_prompt_moves() -> None:
    told = gathered(RECORDED / "no_progress")
    row = told["metrics"][0]
    row["second"] = row["second"].replace("9001.0", "9002.0")
    assert run_rules(evidence.read_evidence(told)) == []


def test_a_reload_after_the_sleep_is_as_it_should_be() -> None:
    reloaded = "(EngineCore_DP0 pid=1) INFO [gpu_model_runner.py:3436] Reloading weights inplace..."
    assert found(RECORDED / "sleep_weights", reloaded) == {}
    first_level = 'INFO: 127.0.0.1:5 - "POST /sleep?level=1 HTTP/1.1" 200 OK'
    assert found(None, first_level, 'INFO: 127.0.0.1:5 - "POST /wake_up HTTP/1.1" 200 OK') == {}


def test_the_context_that_fits_is_named() -> None:
    assert (
        "kimi_context: 5632"
        in found(RECORDED / "kv_cache_memory")["diagnose.kv_cache_memory"]["fix"]
    )


def test_a_load_is_slow_by_the_plan() -> None:
    told = gathered(RECORDED / "slow_load")
    told["plan"] = {"throughput": {"load_s": {"low": 900, "expected": 1000, "high": 1200}}}
    assert run_rules(evidence.read_evidence(told)) == []


def test_speeds_of_a_stand_in_are_held_against_nothing() -> None:
    told = gathered(RECORDED / "slower")
    told["plan"]["model"]["random_weights"] = True
    assert run_rules(evidence.read_evidence(told)) == []


def test_what_is_down_is_told_with_its_cause() -> None:
    told = gathered(
        None, "(APIServer pid=1) ERROR 11-21 03:04:19 [core.py:1] ValueError: no such thing"
    )
    told["status"]["detail"] = f"not active: {UNIT}, kimi-proxy.service; the certificate has ended"
    (row,) = run_rules(evidence.read_evidence(told))
    assert row["id"] == "diagnose.down"
    assert row["observed"] == (
        f"{UNIT}, kimi-proxy.service; {UNIT} said: ValueError: no such thing"
    )


def test_a_machine_that_rests_on_purpose_has_no_fault() -> None:
    told = gathered(RECORDED / "gpu_memory", ok=True)
    since = "2026-11-24T06:00:00Z"
    told["status"] |= {
        "detail": f"asleep since {since}: kimi-prov start INVENTORY",
        "rest": {"since": since, "failed": None},
    }
    rows = {row["id"]: row for row in run_rules(evidence.read_evidence(told))}
    assert {row["severity"] for row in rows.values()} == {"info"}
    assert rows["diagnose.resting"]["observed"] == f"asleep since {since}"
    assert "kimi-prov start" in rows["diagnose.resting"]["fix"]
    # What could not be woken has one.
    told["status"]["rest"]["failed"] = f"{UNIT} failed: out of memory"
    rows = {row["id"]: row for row in run_rules(evidence.read_evidence(told))}
    assert rows["diagnose.resting"]["severity"] == "warning"
    assert "could not wake it: " + UNIT in rows["diagnose.resting"]["observed"]
    assert rows["diagnose.gpu_memory"]["severity"] == "blocker"


def test_an_engine_that_starts_is_not_down_unless_it_starts_again_and_again() -> None:
    told = gathered()
    told["status"]["detail"] = f"not active: {UNIT}"
    told["units"] = {UNIT: {"ActiveState": "activating", "NRestarts": "0"}}
    assert run_rules(evidence.read_evidence(told)) == []
    told["units"][UNIT]["NRestarts"] = "3"
    assert [row["id"] for row in run_rules(evidence.read_evidence(told))] == ["diagnose.down"]


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"status": None, "plan": None, "logs": None, "kernel": None, "metrics": None},
        {"logs": {UNIT: {"entries": [1, None, {"time_us": "x"}, {"time_us": -1}]}}},
        {"metrics": [None, {"first": 3}, {"unit": "x", "first": "vllm:x nan\n", "second": 1}]},
        {"plan": {"throughput": "x", "model": 1}, "status": []},
    ],
)
def test_an_answer_of_another_form_is_nothing(odd: dict[str, Any]) -> None:
    assert run_rules(evidence.read_evidence(odd)) == []
