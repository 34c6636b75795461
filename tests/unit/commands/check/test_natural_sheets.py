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


@pytest.mark.parametrize(
    ("lines", "gpus", "disks", "sockets"),
    [
        (
            [
                "CPU: Dual AMD EPYC 9254",
                "RAM: 24 x 32GB DDR5-4800",
                "GPU: 8x RTX 4090",
                "Motherboard: ASRock Rack GENOA2D24G-2L+",
                "Storage: 2TB NVMe",
                "Power: 4x 2000W",
            ],
            8,
            [2000],
            2,
        ),
        (
            [
                "cpu: AMD Threadripper Pro 7975WX",
                "ram: 8x 64 GB DDR5-5600 ECC RDIMM",
                "storage 1: 4 TB Gen5 NVMe",
                "storage 2: 2 TB NVMe",
                "psu 1: 2000 W",
                "gpu: 2x RTX PRO 6000 Blackwell Max-Q 96GB",
            ],
            2,
            [4000, 2000],
            1,
        ),
        (
            [
                "processors:",
                "  - Xeon Platinum 8568Y+ (48C) x 2",
                "memory:",
                "  - 32 x 64GB RDIMM, 5600MT/s, Dual Rank",
                "accelerators: NVIDIA HGX H200 8-GPU SXM 141GB 700W",
                "drives: [8x 3.84TB NVMe, 2x M.2 960GB]",
            ],
            8,
            [3840] * 8 + [960] * 2,
            2,
        ),
        (
            [
                "cpu: [Xeon 6972P, Xeon 6972P]",
                "memory: 24x 64GB MRDIMM-8800",
                "gpus: 4x H200 NVL (NVLink bridge)",
                "disks: 4x 7,68 TB NVMe",
            ],
            4,
            [7680] * 4,
            2,
        ),
    ],
    ids=["capitals", "numbered keys", "lists", "remarks and decimals"],
)
def test_parts_lists_are_taken_as_people_write_them(
    tmp_path: Path, lines: list[str], gpus: int, disks: list[int], sockets: int
) -> None:
    ended = check(tmp_path, "\n".join(lines) + "\n")
    assert ended.code in (0, 3), ended.err
    [target] = json.loads(ended.out)["targets"]
    facts = target["facts"]
    assert facts["cpu"]["sockets"] == sockets
    assert len(facts["gpus"]) == gpus
    assert [disk["size_bytes"] // 10**9 for disk in facts["disks"]] == disks


def test_a_second_key_adds_to_the_first(tmp_path: Path) -> None:
    ended = check(tmp_path, as_lines({**SHORT, "storage": "2 TB NVMe", "storage 2": "1 TB NVMe"}))
    [target] = json.loads(ended.out)["targets"]
    assert [disk["size_bytes"] for disk in target["facts"]["disks"]] == [2 * 10**12, 10**12]
