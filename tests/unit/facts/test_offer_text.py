"""Whole offers as they are pasted, through `kimi-prov check --text`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fuzzing
import pytest
import yaml

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import offer_text

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Pasted:
    """An offer, and what a person reads in it."""

    text: str
    cpu: tuple[str, int]
    memory: dict[str, Any]
    gpus: list[tuple[str, int]]
    rest: dict[str, Any]


OFFERS = {
    "a-list-with-article-numbers": Pasted(
        """\
Qty  Part No.    Description
1    P73623-B21  HPE ProLiant Compute XD685 8-GPU NVIDIA HGX H200 CTO Server
2    P67096-B21  AMD EPYC 9575F 3.3GHz 64-core 400W Processor for HPE
24   P64708-B21  HPE 96GB (1x96GB) Dual Rank x4 DDR5-6400 EC8 Registered Smart Memory Kit
1    S2D86A      NVIDIA HGX H200 141GB 8-GPU Baseboard Air Cooled for HPE
8    P64848-B21  HPE 3.84TB NVMe Gen5 Read Intensive E3S EC1 SSD
8    P45641-H22  InfiniBand NDR200/Ethernet 200GbE 1-port OSFP PCIe5 x16 Adapter for HPE
""",
        ("EPYC 9575F", 2),
        {"dimms": 24, "dimm_gb": 96, "speed_mt_s": 6400, "type": "DDR5"},
        [("H200 SXM", 8)],
        {"disks": [{"size_gb": 3840, "count": 8, "kind": "nvme"}]},
    ),
    "codes-before-and-counts-behind": Pasted(
        """\
7DHECTO1WW  ThinkSystem SR680a V3  1
BYFX  Intel Xeon Platinum 8570 56C 350W 2.1GHz Processor  2
BYTJ  ThinkSystem 64GB TruDDR5 5600MHz (2Rx4) RDIMM  32
C1HM  ThinkSystem NVIDIA HGX B200 180GB 1000W 8-GPU Board  1
BTMB  ThinkSystem 1x4 E3S / 3.84TB Read Intensive NVMe PCIe 5.0 x4 HS SSD  8
""",
        ("Xeon Platinum 8570", 2),
        {"dimms": 32, "dimm_gb": 64, "speed_mt_s": 5600},
        [("B200 SXM", 8)],
        {"disks": [{"size_gb": 3840, "count": 8, "kind": "nvme"}]},
    ),
    "a-title-without-commas": Pasted(
        "Dell PowerEdge R750xa 2x Xeon Gold 6342 24-Core 1TB DDR4 4x NVIDIA A100 80GB PCIe "
        "2x 1.92TB SSD Server\n",
        ("Xeon Gold 6342", 2),
        {"total_gb": 1024, "type": "DDR4"},
        [("A100 PCIe 80GB", 4)],
        {"disks": [{"size_gb": 1920, "count": 2, "kind": "ssd"}]},
    ),
    "counts-in-labels-and-on-lines": Pasted(
        """\
CPU (x2) | AMD EPYC 9684X
RAM (Host Memory) | 1.5 TB DDR5 (24 x 64GB)
GPU Model | NVIDIA H100 NVL 94GB
Quantity | 8 Units
""",
        ("EPYC 9684X", 2),
        {"dimms": 24, "dimm_gb": 64, "type": "DDR5"},
        [("H100 NVL 94GB", 8)],
        {},
    ),
    "a-table-of-dell": Pasted(
        """\
Dell PowerEdge XE9680 - Quote 3000.1
Qty | Description | Unit price
2 | Intel Xeon Platinum 8568Y+ 2.3G, 48C/96T, 20GT/s, 300M Cache, Turbo, HT (350W) | $9,000
32 | 64GB RDIMM, 5600MT/s, Dual Rank | $450
8 | NVIDIA HGX H200 141GB SXM5 700W GPU |
8 | 3.84TB Data Center NVMe Read Intensive AG Drive U2 Gen4 | $800
8 | NVIDIA ConnectX-7 400Gb/s NDR single port
6 | 2800W Titanium PSU
Ubuntu Server 22.04 LTS
Total: 289,900.00 USD
""",
        ("Xeon Platinum 8568Y+", 2),
        {"dimms": 32, "dimm_gb": 64, "speed_mt_s": 5600},
        [("H200 SXM", 8)],
        {
            "disks": [{"size_gb": 3840, "count": 8, "kind": "nvme"}],
            "nics": [{"speed_gbit_s": 400, "count": 8}],
            "software": {"os": "ubuntu-22.04"},
        },
    ),
    "a-list-with-labels": Pasted(
        """\
- System: Supermicro SYS-A22GA-NBRT
- Processor: Dual Intel Xeon 6960P (72 cores)
- Memory: 24 x 128GB DDR5-6400 ECC RDIMM
- GPU: NVIDIA HGX B200 8-GPU
- Storage: 8x 3.84TB NVMe + 2x 960GB M.2
- Network: 2x 10GbE RJ45, 8x 400G NDR
- Price: $98.32 per hour
- Warranty: 3 years
""",
        ("Xeon 6960P", 2),
        {"dimms": 24, "dimm_gb": 128, "speed_mt_s": 6400, "type": "DDR5"},
        [("B200 SXM", 8)],
        {"name": "Supermicro SYS-A22GA-NBRT", "price": {"hourly": "$98.32"}},
    ),
    "a-sentence-of-a-forum": Pasted(
        "I have a dual EPYC 9654 with 768GB DDR5-4800 (24x32GB) and 4x RTX 5090, 2x 4TB NVMe, "
        "paid $45k to buy\n",
        ("EPYC 9654", 2),
        {"dimms": 24, "dimm_gb": 32, "speed_mt_s": 4800, "type": "DDR5"},
        [("RTX 5090", 4)],
        {"disks": [{"size_gb": 4000, "count": 2, "kind": "nvme"}], "price": {"purchase": "$45000"}},
    ),
    "a-cloud-s-line": Pasted(
        "Node has 8 NVIDIA H100 GPUs (80GB SXM5), 2 Xeon Platinum 8480+ CPUs and 2TB RAM; "
        "30TB local NVMe; 8x400G InfiniBand. $22/hr\n",
        ("Xeon Platinum 8480+", 2),
        {"total_gb": 2048},
        [("H100 SXM 80GB", 8)],
        {"nics": [{"speed_gbit_s": 400, "count": 8}], "price": {"hourly": "$22"}},
    ),
    "hpe-s-words": Pasted(
        """\
HPE Cray XD670
2 x Intel Xeon-Platinum 8592+ 1.9GHz 64-core 350W Processor for HPE
32 x HPE 64GB (1x64GB) Dual Rank x4 DDR5-5600 CAS-46-45-45 EC8 Registered Smart Memory Kit
8 x NVIDIA H200 141GB SXM5
4 x HPE 7.68TB NVMe Gen4 High Performance Read Intensive U.2 SSD
""",
        ("Xeon Platinum 8592+", 2),
        {"dimms": 32, "dimm_gb": 64, "speed_mt_s": 5600, "type": "DDR5"},
        [("H200 SXM", 8)],
        {"disks": [{"size_gb": 7680, "count": 4, "kind": "nvme"}]},
    ),
    "a-workstation": Pasted(
        """\
CPU: AMD Ryzen Threadripper PRO 7975WX 32-Core, 4.0 GHz
Motherboard: ASRock Rack WRX90D8-2L/2T
RAM: 8x 64 GB DDR5-5600 ECC RDIMM (512 GB total)
GPU: 2x NVIDIA RTX PRO 6000 Blackwell Workstation Edition 96 GB
SSD: 4 TB Gen5 NVMe (Samsung 9100 Pro)
PSU: 2000 W Titanium
OS: Debian 12
""",
        ("Threadripper PRO 7975WX", 1),
        {"dimms": 8, "dimm_gb": 64, "speed_mt_s": 5600, "type": "DDR5"},
        [("RTX PRO 6000 Blackwell (Workstation)", 2)],
        {"software": {"os": "debian-12"}},
    ),
    "a-used-server": Pasted(
        """\
Used Gigabyte R292, 2x Xeon Gold 6330 28C 2.0GHz
1.5 TB DDR4-2933 (24x 64GB 2Rx4 PC4-23400)
2x 1.92TB SATA SSD
EUR 7,900
""",
        ("Xeon Gold 6330", 2),
        {"dimms": 24, "dimm_gb": 64, "type": "DDR4"},
        [],
        {"disks": [{"size_gb": 1920, "count": 2, "kind": "ssd"}]},
    ),
    "lambda-s-page": Pasted(
        """\
Lambda Scalar
* 2x AMD EPYC 9575F (64 cores)
* 1.5 TB DDR5
* 8x NVIDIA RTX PRO 6000 Blackwell Server Edition (96 GB)
* 1x 7.68 TB NVMe, 2x 1.92 TB M.2
* $138,500 purchase
""",
        ("EPYC 9575F", 2),
        {"total_gb": 1536, "type": "DDR5"},
        [("RTX PRO 6000 Blackwell (Server)", 8)],
        {"price": {"purchase": "$138,500"}},
    ),
    "sockets-told-apart": Pasted(
        """\
Processor 1: AMD EPYC 9755 128-Core
Processor 2: AMD EPYC 9755 128-Core
DIMMs: 12x 96GB DDR5-6400 per CPU
Accelerators: none
""",
        ("EPYC 9755", 2),
        {"dimms": 24, "dimm_gb": 96, "speed_mt_s": 6400, "type": "DDR5"},
        [],
        {},
    ),
    "amd-s-platform": Pasted(
        """\
Server | ASUS ESC A8A-E12U
CPU | 2x AMD EPYC 9965
Memory | 24x 128GB DDR5-6400
GPU | 8x AMD Instinct MI325X 256GB OAM
NIC | 8x 400GbE + 2x 25GbE
""",
        ("EPYC 9965", 2),
        {"dimms": 24, "dimm_gb": 128, "speed_mt_s": 6400, "type": "DDR5"},
        [("MI325X", 8)],
        {"nics": [{"speed_gbit_s": 400, "count": 8}, {"speed_gbit_s": 25, "count": 2}]},
    ),
}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(tmp_path: Path, *words: str) -> fuzzing.Ended:
    return fuzzing.run(["check", *words], tmp_path / "state")


@pytest.mark.parametrize("name", OFFERS)
def test_an_offer_becomes_a_sheet(tmp_path: Path, name: str) -> None:
    offer, path = OFFERS[name], tmp_path / f"{name}.txt"
    path.write_text(offer.text, encoding="utf-8")
    ended = run(tmp_path, "--text", str(path))
    assert ended.code == 0, ended.err
    sheet = yaml.safe_load(ended.out)
    assert (sheet["cpu"]["model"], sheet["cpu"]["sockets"]) == offer.cpu
    assert sheet["memory"].items() >= offer.memory.items()
    assert [(gpu["model"], gpu["count"]) for gpu in sheet.get("gpus", [])] == offer.gpus
    assert {key: sheet.get(key) for key in offer.rest} == offer.rest


@pytest.mark.parametrize("name", OFFERS)
def test_the_sheet_that_is_printed_can_be_checked(tmp_path: Path, name: str) -> None:
    path, sheet = tmp_path / "offer.txt", tmp_path / "sheet.yml"
    path.write_text(OFFERS[name].text, encoding="utf-8")
    assert run(tmp_path, "--text", str(path), "--output", str(sheet)).code == 0
    judged = run(tmp_path, str(sheet), "--format", "json")
    assert judged.code in (0, 3), judged.err
    assert json.loads(judged.out)["targets"][0]["facts"]["cpu"]["model"] == OFFERS[name].cpu[0]


def test_what_was_not_understood_stands_below_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "offer.txt"
    path.write_text(OFFERS["a-table-of-dell"].text, encoding="utf-8")
    ended = run(tmp_path, "--text", str(path))
    assert "# price: 289,900.00 USD: to buy or by the hour?" in ended.out
    assert "#   line 1: Dell PowerEdge XE9680 - Quote 3000.1" in ended.out
    assert "#   line 8: 6 | 2800W Titanium PSU" in ended.out


def test_lines_beyond_the_bound_are_said_to_be_unread(tmp_path: Path) -> None:
    path = tmp_path / "offer.txt"
    path.write_text("2x EPYC 9654\n" * 2 + "\n" * 500 + "1 TB RAM\n", encoding="utf-8")
    assert (
        "line 401: this line and those after it, to 503" in run(tmp_path, "--text", str(path)).out
    )


def test_json_has_the_sheet_and_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "offer.txt"
    path.write_text("2x EPYC 9654\nfree delivery\n", encoding="utf-8")
    ended = run(tmp_path, "--text", str(path), "--format", "json")
    [offer] = json.loads(ended.out)["offers"]
    assert offer["sheet"]["cpu"] == {"model": "EPYC 9654", "sockets": 2}
    assert offer["missing"] == ["memory"]
    assert offer["unread"] == [{"line": 2, "text": "free delivery"}]


@pytest.mark.parametrize(
    ("text", "says"),
    [("nothing of a machine\n", "neither a processor nor memory"), ("\x00\x1b[2J", "neither")],
)
def test_a_text_without_a_machine_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "offer.txt"
    path.write_text(text, encoding="utf-8")
    ended = run(tmp_path, "--text", str(path))
    assert ended.code == 2
    assert says in ended.err
    assert "\x1b" not in ended.out + ended.err


def test_an_offer_is_no_target(tmp_path: Path) -> None:
    ended = run(tmp_path, "--text", "offer.txt", "sheet.yml")
    assert ended.code == 2
    assert "--text prints a sheet and judges nothing" in ended.err


@pytest.mark.parametrize(
    ("line", "part", "rows"),
    [
        ("GPU: H20 96G *8 (NVLink)", "gpus", [{"model": "H20", "count": 8}]),
        (
            "GPU: NVIDIA HGX B200 SXM 8-way, 180GB HBM3e each",
            "gpus",
            [{"model": "B200 SXM", "count": 8}],
        ),
        (
            "2 \u00d7 3,84 TB NVMe SSD",
            "disks",
            [{"size_gb": 3840, "count": 2, "kind": "nvme"}],
        ),
        ("1 499 \u20ac/month", "price", {"hourly": "2.0534 \u20ac"}),
        ("2x NDR200 InfiniBand ConnectX-7", "nics", [{"speed_gbit_s": 200, "count": 2}]),
        (
            "Hi, my box: EPYC 7532 (32c), 512GB (8x64GB) DDR4-2933, 4x3090 and a 4TB 990 Pro.",
            "gpus",
            [{"model": "RTX 3090", "count": 4}],
        ),
        (
            "Hi, my box: EPYC 7532 (32c), 512GB (8x64GB) DDR4-2933, 4x3090 and a 4TB 990 Pro.",
            "memory",
            {"dimms": 8, "dimm_gb": 64, "speed_mt_s": 2933, "type": "DDR4"},
        ),
        ("Hi, my box: EPYC 7532 (32c)", "cpu", {"model": "EPYC 7532", "sockets": 1}),
        ("$12 500 per month", "price", {"hourly": "$17.1233"}),
    ],
)
def test_phrases_of_public_offers(line: str, part: str, rows: object) -> None:
    offer = offer_text.read_offer(line, load_catalogue(), "offer")
    assert offer.sheet[part] == rows


@pytest.mark.parametrize(
    ("line", "part", "rows"),
    [
        *(
            (f"| GPU | {name} | 8 |", "gpus", [{"model": model, "count": 8}])
            for name, model in (("B200", "B200 SXM"), ("H200", "H200 SXM"), ("L40S", "L40S"))
        ),
        ("| GPU | P64708-B21 | NVIDIA L40S | 8 |", "gpus", [{"model": "L40S", "count": 8}]),
        ("| RAM | 1536GB |", "memory", {"total_gb": 1536}),
        ("| RAM | 512GB | DDR5 |", "memory", {"total_gb": 512, "type": "DDR5"}),
        ("PCIe (x16): NVIDIA L40S", "gpus", [{"model": "L40S", "count": 1}]),
        ("Riser Slot (x16): NVIDIA L40S", "gpus", [{"model": "L40S", "count": 1}]),
        ("GPU | NVIDIA L40S | x16 | 8", "gpus", [{"model": "L40S", "count": 8}]),
        ("GPU | NVIDIA L40S | PCIe 4.0 | x16", "gpus", [{"model": "L40S", "count": 1}]),
        ("GPU | NVIDIA L40S | x8", "gpus", [{"model": "L40S", "count": 8}]),
        ("GPU (x8): NVIDIA L40S", "gpus", [{"model": "L40S", "count": 8}]),
    ],
)
def test_cells_that_name_parts_and_widths_of_slots(line: str, part: str, rows: object) -> None:
    offer = offer_text.read_offer(line, load_catalogue(), "offer")
    assert offer.sheet.get(part) == rows
