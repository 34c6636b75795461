"""`check` takes a sheet as people write it, as YAML or JSON, and tells all faults of another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import fuzzing
import pytest

if TYPE_CHECKING:
    from pathlib import Path

SHORT = {
    "cpu": "2x Xeon Gold 6530",
    "memory": "16x 64 GB DDR5-4800",
    "gpu": "8x H200",
    "price": {"purchase_eur": "250,000", "usd_per_eur": 1.08},
}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def check(tmp_path: Path, text: str, name: str = "vendor-b.yml") -> fuzzing.Ended:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return fuzzing.run(["check", str(tmp_path / name), "--format", "json"], tmp_path / "state")


def as_lines(sheet: dict[str, object]) -> str:
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in sheet.items())


@pytest.mark.parametrize("name", ["vendor-b.yml", "vendor-b.json"])
def test_a_sheet_without_a_schema_is_known_by_its_keys(tmp_path: Path, name: str) -> None:
    text = json.dumps(SHORT, indent=1) if name.endswith("json") else as_lines(SHORT)
    ended = check(tmp_path, text, name)
    assert ended.code == 0, ended.err
    [target] = json.loads(ended.out)["targets"]
    assert target["name"] == "vendor-b"
    assert len(target["facts"]["gpus"]) == 8
    assert target["cost"]["purchase_usd"] == 270_000


def test_other_json_without_a_schema_is_no_sheet(tmp_path: Path) -> None:
    ended = check(tmp_path, json.dumps({"cpu": {}, "numa": {}, "memory": {}}), "facts.json")
    assert ended.code == 2
    assert "names no schema" in ended.err


def test_every_fault_is_on_the_screen_with_its_line(tmp_path: Path) -> None:
    ended = check(tmp_path, as_lines({**SHORT, "cpu": "2x Xeon 8480", "gpu": "8x H201", "dsk": 1}))
    assert ended.code == 2
    assert ended.out == ""
    for told in (
        "vendor-b.yml: 3 faults",
        "vendor-b.yml:1: cpu: unknown CPU 'Xeon 8480'; did you mean Xeon Platinum 8480+",
        "vendor-b.yml:3: gpu: unknown GPU 'H201'; did you mean",
        "vendor-b.yml:5: dsk: unknown key; did you mean 'disks'?",
        "kimi-prov catalog cpus",
    ):
        assert told in ended.err
