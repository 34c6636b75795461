"""Parts as sellers write them, read through whole sheets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.errors import UserError
from kimi_prov.facts import spec

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
GB = 10**9


def read(tmp_path: Path, **lines: str) -> Any:
    sheet = {"cpu": "2x Xeon Platinum 8568Y+", "memory": "1 TB", **lines}
    path = tmp_path / "offer.yml"
    path.write_text("".join(f"{key}: '{text}'\n" for key, text in sheet.items()), encoding="utf-8")
    return spec.read_sheet(path, load_catalogue())


# What it says, and then modules, GiB of all, MT/s.
MEMORY: list[tuple[str, int | None, int, int | None]] = [
    ("24x 64GB DDR5-5600 RDIMM", 24, 1536, 5600),
    ("8x 64 GB DDR5-5600 ECC RDIMM (512 GB total)", 8, 512, 5600),
    ("32x 64GB RDIMM, 5600MT/s, Dual Rank", 32, 2048, 5600),
    ("24 x 128GB DDR5-6400 ECC RDIMM", 24, 3072, 6400),
    ("2TB (32x64GB) ECC", 32, 2048, None),
    ("1.5 TB DDR5", None, 1536, None),
    ("1TB DDR5 @ 5600", None, 1024, 5600),
    ("12x 96GB (1.15TB) DDR5 6400", 12, 1152, 6400),
    ("64GB x24", 24, 1536, None),
    ("64GB DDR5-4800 x 24", 24, 1536, 4800),
    ("24 DIMMs of 64 GB", 24, 1536, None),
    ("1.5TB (24 DIMMs)", 24, 1536, None),
    ("(24) 64GB 2Rx4 PC5-4800B-R", 24, 1536, 4800),
    ("24 64GB DIMMs", 24, 1536, None),
    ("2,048 GB DDR5", None, 2048, None),
    ("Samsung 64GB DDR5-5600 M321R8GA0BB0-CQK, qty 24", 24, 1536, 5600),
    ("16x64G + 8x32G DDR5", None, 1280, None),
    ("24x 64 GB DDR5-5600 running at 4400 MT/s", 24, 1536, 5600),
    ("12x 64GB per CPU DDR5-4800", 24, 1536, 4800),
    ("1024 GB (1TB) DDR5", None, 1024, None),
    ("32 x 64 GB = 2 TB", 32, 2048, None),
    ("16 \u00d7 96GB 5600MHz", 16, 1536, 5600),
    ("24*64G DDR5 4800", 24, 1536, 4800),
    ("DDR5 4800 64GB*32", 32, 2048, 4800),
    ("2TB RAM", None, 2048, None),
    ("1.5 TiB", None, 1536, None),
    ("16 pcs 64GB DDR5 4800MHz ECC REG", 16, 1024, 4800),
    ("Qty: 16, 64GB RDIMM", 16, 1024, None),
    ("Kingston 1TB kit (16 x 64GB) DDR5-5600", 16, 1024, 5600),
    ("PC5-38400 64GB x 16", 16, 1024, 4800),
]


@pytest.mark.parametrize(("text", "modules", "gib", "speed"), MEMORY)
def test_memory(
    tmp_path: Path, text: str, modules: int | None, gib: int, speed: int | None
) -> None:
    memory = read(tmp_path, memory=text)["memory"]
    assert memory["total_bytes"] == gib * GIB
    assert (len(memory["dimms"]) if memory["dimms"] else None) == modules
    if modules and speed:
        assert memory["dimms"][0]["speed_mt_s"] == speed


def test_modules_of_one_socket_are_counted_for_each_however_the_sockets_are_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "offer.yml"
    text = 'cpu: {model: EPYC 9654, sockets: "2"}\nmemory: 12x 64GB per CPU\n'
    path.write_text(text, encoding="utf-8")
    assert spec.read_sheet(path, load_catalogue())["memory"]["total_bytes"] == 1536 * GIB


def test_memory_that_was_set_slower_runs_so(tmp_path: Path) -> None:
    memory = read(tmp_path, memory="24x 64 GB DDR5-5600 running at 4400 MT/s")["memory"]
    assert memory["dimms"][0]["configured_mt_s"] == 4400


def test_mrdimms_are_modules_of_ddr5(tmp_path: Path) -> None:
    found = read(tmp_path, cpu="2x Xeon 6980P", memory="24x 96GB MRDIMM 8800")
    assert found["memory"]["dimms"][0]["configured_mt_s"] == 8800


@pytest.mark.parametrize(
    ("cpu", "memory", "says"),
    [
        (
            "2x Xeon Platinum 8480+",
            "1.5 TB DDR4-2666",
            "Xeon Platinum 8480+ takes DDR5, found DDR4",
        ),
        ("2x EPYC 7763", "16x 64GB DDR5-4800", "EPYC 7763 takes DDR4, found DDR5"),
        ("2x EPYC 7763", "16x 64GB 4800 MT/s", "takes DDR4, which runs at 1600 to 3600 MT/s"),
        ("2x EPYC 9654", "16x 64GB PC4-21300", "takes DDR5, which runs at"),
        ("2x EPYC 9654", "2 TB (24x 96GB)", "24 x 96 GB are 2304 GB, and the total says 2048 GB"),
        ("2x EPYC 9654", "1 TB or 2 TB", "two totals, 1024 and 2048 GB"),
        ("2x EPYC 9654", "16x 64GB DDR4 or DDR5", "of two types, DDR4 and DDR5"),
        ("2x EPYC 9654", "plenty", "no size with a unit"),
        ("2x EPYC 9654 64C", "1 TB", "EPYC 9654 has 96 cores"),
    ],
)
def test_memory_and_processor_that_cannot_be_are_refused(
    tmp_path: Path, cpu: str, memory: str, says: str
) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, cpu=cpu, memory=memory)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("text", "model", "sockets"),
    [
        ("2x Intel Xeon Platinum 8568Y+ 2.3G, 48C/96T", "Xeon Platinum 8568Y+", 2),
        ("2x AMD EPYC 9575F (64 cores)", "EPYC 9575F", 2),
        ("Dual Intel Xeon 6960P", "Xeon 6960P", 2),
        ("2 \u00d7 5th Gen AMD EPYC 9965 192-Core 2.25GHz 500W", "EPYC 9965", 2),
        ("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", "Xeon Platinum 8480C", 1),
        ("2x EPYC\u2122 9654 (96C, 2.4GHz, 384MB cache)", "EPYC 9654", 2),
        ("AMD Threadripper Pro 7975WX", "Threadripper PRO 7975WX", 1),
        ("(2) Intel Xeon-Platinum 8592+ 1.9GHz 64-core 350W Processor for HPE",
         "Xeon Platinum 8592+", 2),
        ("2x Intel Xeon 6 6980P", "Xeon 6980P", 2),
        ("2x Xeon E5 2699 v4", "Xeon E5-2699 v4", 2),
        ("Intel Xeon Gold 6530 2.1G, 32C/64T, 20GT/s, 160M Cache, Turbo, HT (270W) DDR5-4800",
         "Xeon Gold 6530", 1),
        ("EPYC 9654P 96-Core, SP5", "EPYC 9654P", 1),
        ("EPYC 9654 (x2)", "EPYC 9654", 2),
        ("Two AMD EPYC 9754", "EPYC 9754", 2),
    ],
)  # fmt: skip
def test_processors(tmp_path: Path, text: str, model: str, sockets: int) -> None:
    cpu = read(tmp_path, cpu=text)["cpu"]
    assert (cpu["model"], cpu["sockets"]) == (model, sockets)


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("8x NVIDIA HGX H200 141GB SXM5", ["H200 SXM"] * 8),
        ("8x NVIDIA H200 141GB SXM5", ["H200 SXM"] * 8),
        ("NVIDIA HGX B200 8-GPU", ["B200 SXM"] * 8),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition (96 GB)",
         ["RTX PRO 6000 Blackwell (Server)"]),
        ("2x NVIDIA H100 NVL 94GB PCIe", ["H100 NVL 94GB"] * 2),
        ("HGX H100 8-GPU 80GB SXM5", ["H100 SXM 80GB"] * 8),
        ("DGX H200", ["H200 SXM"] * 8),
        ("4x Tesla A100 80GB SXM4", ["A100 SXM 80GB"] * 4),
        ("GeForce RTX 5090 32GB GDDR7 Founders Edition", ["RTX 5090"]),
        ("H100 80GB PCIe Gen5 passive", ["H100 PCIe 80GB"]),
        ("8x AMD Instinct MI300X 192GB OAM", ["MI300X"] * 8),
        ("8x B200 192GB SXM", ["B200 SXM"] * 8),
        ("L40S 48GB PCIe 4.0 x16", ["L40S"]),
        ("8x H20-3e", ["H20-3e"] * 8),
        ("4x H20 141GB", ["H20-3e"] * 4),
        ("2x RTX 5090, 1x RTX 4090", ["RTX 5090", "RTX 5090", "RTX 4090"]),
    ],
)  # fmt: skip
def test_gpus(tmp_path: Path, text: str, models: list[str]) -> None:
    assert [gpu["model"] for gpu in read(tmp_path, gpus=text)["gpus"]] == models


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8x H200 PCIe", "unknown GPU 'H200 PCIe'"),
        ("8x H100 SXM 96GB", "the catalogue's H100 SXM 80GB has 80 GB"),
        ("1x Gaudi 9", "none has a name like it"),
    ],
)
def test_a_gpu_that_is_another_is_not_taken(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, gpus=text)
    assert says in caught.value.message


# What it says, and then GB of one, how many, kind.
DISKS: list[tuple[str, list[tuple[float, int, str | None]]]] = [
    ("4 TB Gen5 NVMe (Samsung 9100 Pro)", [(4000, 1, "nvme")]),
    ("8x 3.84TB Data Center NVMe Read Intensive AG Drive U2 Gen4", [(3840, 8, "nvme")]),
    ("1x 7.68 TB NVMe, 2x 1.92 TB M.2", [(7680, 1, "nvme"), (1920, 2, "ssd")]),
    ("2 x 1.92TB M.2", [(1920, 2, "ssd")]),
    ("2 x 960GB M.2 NVMe boot + 8 x 7.68TB U.2 NVMe", [(960, 2, "nvme"), (7680, 8, "nvme")]),
    ("2x 480GB SATA SSD (RAID 1), 4x 16TB 7.2K SAS HDD 12Gb/s",
     [(480, 2, "ssd"), (16000, 4, "hdd")]),
    ("NVMe SSD 3.84TB x2", [(3840, 2, "nvme")]),
    ("30.72TB E3.S", [(30720, 1, "nvme")]),
    ("(2) 1.92TB NVMe", [(1920, 2, "nvme")]),
    ("3.84T NVMe*4", [(3840, 4, "nvme")]),
    ("3.84 TB", [(3840, 1, None)]),
    ("1 PB NFS", [(1_000_000, 1, "network")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "disks"), DISKS)
def test_disks(tmp_path: Path, text: str, disks: list[tuple[float, int, str | None]]) -> None:
    found = [(row["size_bytes"], row["kind"]) for row in read(tmp_path, storage=text)["disks"]]
    assert found == [(round(gb * GB), kind) for gb, many, kind in disks for _ in range(many)]


@pytest.mark.parametrize(
    ("text", "speeds"),
    [
        ("8x NVIDIA ConnectX-7 400Gb/s NDR", [400] * 8),
        ("Dual-port 25GbE", [25, 25]),
        ("2x dual-port 100GbE SFP28", [100] * 4),
        ("1x BlueField-3 B3220 2x200GbE", [200, 200]),
        ("10GBASE-T", [10]),
        ("2x NDR InfiniBand, 2x 25GbE", [400, 400, 25, 25]),
        ("2x 10GbE RJ45 + 1x 1GbE IPMI", [10, 10, 1]),
        ("1/10GbE", [10]),
        ("Intel X710 2-port 10GbE", [10, 10]),
    ],
)
def test_network_cards(tmp_path: Path, text: str, speeds: list[int]) -> None:
    rows = read(tmp_path, nics=text)["nics"]
    assert [row["speed_bits_per_s"] for row in rows] == [speed * GB for speed in speeds]


@pytest.mark.parametrize(
    ("text", "system"),
    [
        ("Ubuntu Server 22.04 LTS", ("ubuntu", "22.04")),
        ("Debian GNU/Linux 12 (bookworm)", ("debian", "12")),
        ("Red Hat Enterprise Linux 9.4", ("rhel", "9.4")),
    ],
)
def test_systems_at_the_head_of_a_sheet(tmp_path: Path, text: str, system: tuple[str, str]) -> None:
    found = read(tmp_path, os=text)["host"]["os"]
    assert (found["id"], found["version_id"]) == system


@pytest.mark.parametrize(
    ("price", "purchase", "hourly"),
    [
        ("$250,000 to buy", 250000, None),
        ("$26 per hour", None, 26),
        ("98.32 USD/hr", None, 98.32),
        ("$7,300 a month", None, 10),
        ("purchase: $ 415000", 415000, None),
    ],
)
def test_prices_with_their_words(
    tmp_path: Path, price: str, purchase: float | None, hourly: float | None
) -> None:
    assert read(tmp_path, price=price)["price"] == {"purchase_usd": purchase, "hourly_usd": hourly}


def test_a_price_that_may_be_either_is_asked_for_with_its_amount(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, price="289,900.00 USD")
    assert "price: to buy or by the hour? write price: {purchase_usd: 289900}" in str(caught.value)


def test_what_no_plan_needs_is_said_to_be_not_used(tmp_path: Path) -> None:
    found = read(tmp_path, motherboard="WRX90", psu="2000 W", vendor="Lambda")
    assert found["origins"]["motherboard, psu, vendor"] == spec.NOT_USED


def test_a_key_that_is_like_none_has_no_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, colour="black")
    assert "colour: unknown key" in caught.value.message
    assert "did you mean" not in caught.value.message
