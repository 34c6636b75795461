"""Sheets as people write them: what has one meaning is taken, what has two is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.errors import UserError
from kimi_prov.facts import document as documents
from kimi_prov.facts import spec

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = """\
schema: kimi-prov/spec/v1
name: vendor
cpu: {model: Xeon Platinum 8480+, sockets: 2}
memory: {dimms: 16, dimm_gb: 64, speed_mt_s: 4800}
gpus: {model: H200 SXM, count: 8}
disks: [{kind: nvme, size_gb: 3840, count: 4}]
nics: [{speed_gbit_s: 100, count: 2}]
software: {os: ubuntu-24.04}
price: {purchase_usd: 250000}
"""


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "vendor.yml"
    path.write_text(text, encoding="utf-8")
    return spec.read_sheet(path, load_catalogue())


def refused(tmp_path: Path, text: str) -> UserError:
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    return caught.value


def with_line(line: str) -> str:
    """The whole sheet with another line in the place of the one of that key."""
    key = line.split(":", 1)[0]
    singular = {"gpu": "gpus", "ram": "memory", "disk": "disks", "nic": "nics"}.get(key, key)
    rows = [row for row in WHOLE.splitlines() if not row.startswith(f"{singular}:")]
    return "\n".join([*rows, line, ""])


@pytest.mark.parametrize(
    "line",
    [
        "cpu: 2x Xeon 8480+",
        "cpu: 2 x Intel Xeon Platinum 8480+",
        "cpu: 2\u00d7 Xeon Platinum 8480+",
        "cpu: Xeon Platinum 8480+ x2",
        "cpu: {model: 2x Xeon 8480+}",
        "cpu: {name: Xeon 8480+, count: 2}",
        'cpu: {model: Xeon 8480+, sockets: "2"}',
        "gpus: 8x H200",
        "gpu: 8 x NVIDIA H200",
        "gpus: [8x H200]",
        "gpus: {model: 8x H200 SXM}",
        "gpus: {model: H200, count: 8}",
        "memory: 16x 64 GB DDR5-4800",
        "memory: 16 x 64GB 4800 MT/s",
        "ram: {dimms: 16, dimm_gb: 64 GB, speed_mt_s: DDR5-4800}",
        'memory: {dimms: "16", dimm_gb: 64, speed_mt_s: 4800 MT/s}',
        "disks: 4x 3.84 TB NVMe",
        "disk: 4x 3840 GB nvme",
        "disks: {kind: NVMe, size_tb: 3.84, count: 4}",
        "disks: [{kind: nvme, size: 3.84 TB, count: 4}]",
        "disks: [{kind: nvme, size_bytes: 3840000000000, count: 4}]",
        'disks: [{kind: nvme, size_gb: "3,840", count: 4}]',
        "nics: 2x 100 GbE",
        "nics: [{speed_gbit_s: 100 Gbit/s, count: 2}]",
        "software: Ubuntu 24.04 LTS",
        "software: {os: ubuntu 24.04}",
        'price: {purchase_usd: "250,000"}',
        "price: {purchase_usd: 250 000}",
        "price: {purchase_usd: 250'000}",
        "price: {purchase_usd: 250\u202f000}",
        'price: {purchase_usd: "$250,000.00"}',
        "price: {purchase: 250000, currency: USD}",
        "price: {purchase: $250000}",
    ],
)
def test_other_ways_to_write_a_line_say_the_same(tmp_path: Path, line: str) -> None:
    wanted, found = read(tmp_path, WHOLE), read(tmp_path, with_line(line))
    wanted.pop("origins"), found.pop("origins")
    for gpu in (*wanted["gpus"], *found["gpus"]):
        gpu.pop("name_raw")
    assert found == wanted


@pytest.mark.parametrize(
    ("line", "gib"),
    [
        ("memory: 1.5 TB", 1536),
        ("memory: 1536 GB", 1536),
        ("memory: {total_tb: 2}", 2048),
        ("memory: {size_gb: 768}", 768),
        ("memory: {total_gb: 768}", 768),
        ('memory: {total_gb: "1,536"}', 1536),
        ("memory: {total_bytes: 824633720832}", 768),
        ("memory: {size: 2 TiB}", 2048),
    ],
)
def test_memory_by_its_total(tmp_path: Path, line: str, gib: int) -> None:
    assert read(tmp_path, with_line(line))["memory"]["total_bytes"] == gib << 30


def test_a_sheet_without_schema_and_name_is_called_by_its_file(tmp_path: Path) -> None:
    text = "cpu: 2x EPYC 9654\nmemory: 1.5 TB\nprice: {purchase_usd: 60000}\n"
    found = read(tmp_path, text)
    assert found["origin"]["name"] == "vendor"
    assert found["cpu"]["sockets"] == 2
    assert found["price"] == {"purchase_usd": 60000, "hourly_usd": None}


@pytest.mark.parametrize(
    ("line", "says", "right"),
    [
        ('price: {purchase_usd: "250.000"}', "may be 250000 or 250", ""),
        ("price: {purchase_usd: 250.000}", "may be 250000 or 250", ""),
        ("price: {purchase_usd: 1.250.000}", "write 1250000", ""),
        ('price: {purchase_usd: "250.000,50"}', "with a point before its decimals", ""),
        ("price: {purchase_usd: 250,000}", "a comma ends a value", ""),
        ("price: 250000", "to buy or by the hour?", ""),
        ("price: {purchase: 250000}", "in which currency?", ""),
        ("price: {purchase_usd: 1, hourly_usd: lots}", "price.hourly_usd: wanted a number", ""),
        ("memory: 768", "write memory: {total_gb: 768}", ""),
        ("memory: lots", "wanted memory as", ""),
        ("memory: {total_gb: 768, total_tb: 1}", "there twice", ""),
        ("disks: [{size: 3840}]", 'such as "3.84 TB"', ""),
        ("disks: fast", "wanted a disk as", ""),
        ("disks: [{size_gb: 3840, read_gb_s: '7,500'}]", "may be 7500 or 7.500", ""),
        ("disks: [{size_gb: 3840, read_gb_s: '7,5'}]", "a point before its decimals", ""),
        ("nics: 2x fast", "wanted a network card as", ""),
        ("gpus: [8x H200, 4x H999]", "gpus[1]: unknown GPU 'H999'", "catalog gpus"),
        ("gpus: 8x H200 96GB", "the catalogue's H200 SXM has 141 GB", "catalog gpus"),
        ("cpu: 2x Xeon 8480", "cpu: unknown CPU 'Xeon 8480'; did you mean Xeon Platinum 8480+", ""),
        ("cpu: 3x EPYC 9654", "at most 2, found 3", ""),
        ("cpu: {model: 2x EPYC 9654, sockets: 1}", "2 by its name, 1 here", ""),
        ("price: {purchase_eur: 250000}", "EUR without a rate", "usd_per_unit: RATE"),
        ("price: {purchase: 250000, currency: EUR}", "EUR without a rate", "usd_per_unit: RATE"),
        ("price: {hourly: 26, currency: CHF, rate: 1.1}", "which way round?", "usd_per_unit: RATE"),
        ("price: {purchase_eur: 1, hourly_gbp: 1, usd_per_eur: 1}", "keep to one currency", ""),
        ("price: {purchase: 1, currency: euro}", "price.currency", ""),
        ("price: {purchase: 1, currency: EUR, usd_per_unit: 0}", "price.usd_per_unit: wanted", ""),
    ],
)
def test_what_has_two_meanings_is_refused_with_the_right_form(
    tmp_path: Path, line: str, says: str, right: str
) -> None:
    error = refused(tmp_path, with_line(line))
    assert says in error.message
    assert "\n" not in error.message
    assert f"vendor.yml:{len(with_line(line).splitlines())}: " in error.message
    assert right in str(error.fix)


@pytest.mark.parametrize(
    "line",
    [
        "price: {purchase: 250000, currency: EUR, usd_per_unit: 1.08}",
        "price: {purchase_eur: 250000, usd_per_eur: 1.08}",
        'price: {purchase_eur: "250,000", usd_per_unit: "1.08"}',
        "price: {purchase: €250000, usd_per_unit: 1.08}",
        "price: {purchase: 250 000 EUR, usd_per_eur: 1.08}",
        "price: {purchase: 250000, currency: eur, usd_per_unit: 1.08}",
    ],
)
def test_a_price_in_another_currency_is_taken_with_its_rate(tmp_path: Path, line: str) -> None:
    found = read(tmp_path, with_line(line))
    documents.check_facts(found, "vendor.yml", "mend it")
    assert found["price"] == {
        "purchase_usd": 270000,
        "hourly_usd": None,
        "quoted": {
            "purchase": 250000,
            "hourly": None,
            "currency": "EUR",
            "usd_per_unit": 1.08,
        },
    }


def test_all_faults_are_told_at_once_each_with_its_line_and_key(tmp_path: Path) -> None:
    error = refused(
        tmp_path,
        """\
name: vendor
cpu: {model: Xeon 8480, sockets: two, core: 3}
memory: {dimm: 16, dimm_gb: 64}
gpus: 8x H201
disks:
  - {kind: nvm, size_tb: 3.84}
price: {purchase_eur: 250000}
software: {os: 12}
""",
    )
    head, *told = error.message.splitlines()
    assert head == f"{tmp_path / 'vendor.yml'}: {len(told)} faults"
    places = [line.removeprefix(f"{tmp_path / 'vendor.yml'}:").split(": ")[:2] for line in told]
    assert places == [
        ["2", "cpu.core"],
        ["2", "cpu.sockets"],
        ["2", "cpu.model"],
        ["3", "memory.dimm"],
        ["3", "memory"],
        ["4", "gpus"],
        ["6", "disks[0].kind"],
        ["7", "price.purchase_eur"],
        ["8", "software.os"],
    ]
    assert "did you mean 'dimms'" in error.message
    assert "Xeon Platinum 8480+" in error.message


def test_of_faults_without_end_the_first_are_told(tmp_path: Path) -> None:
    error = refused(tmp_path, WHOLE + "".join(f"wrong{number}: 1\n" for number in range(60)))
    head, *told = error.message.splitlines()
    assert head.endswith("the first 20 faults")
    assert len(told) == 20


def test_what_a_fault_echoes_never_passes_for_a_line_of_ours(tmp_path: Path) -> None:
    error = refused(tmp_path, WHOLE + '"a\\nb: c": 1\n' + '"x\\x1b[2J": 1\n')
    assert len(error.message.splitlines()) == 3
    assert "\x1b" not in error.message


def test_the_sheet_that_is_judged_is_the_schema_s_own(tmp_path: Path) -> None:
    whole = yaml.safe_load(WHOLE)
    assert spec.make_facts(whole, load_catalogue(), "a test")["cpu"] == read(tmp_path, WHOLE)["cpu"]


def test_what_a_sheet_says_twice_is_no_guess(tmp_path: Path) -> None:
    twice = refused(tmp_path, WHOLE + "price: {hourly_usd: 26}\n")
    assert "price: there twice" in twice.message
    sums = refused(tmp_path, with_line("memory: {dimms: 16, dimm_gb: 64, total_gb: 768}"))
    assert "memory.total_gb: 16 modules of 64 GB are 1024, found 768" in sums.message
    same = read(tmp_path, with_line("memory: {dimms: 16, dimm_gb: 64, total_gb: 1024}"))
    assert same["memory"]["total_bytes"] == 1024 << 30


@pytest.mark.parametrize(
    ("written", "kind", "gbit", "ports"),
    [
        ("400 Gbit/s InfiniBand", "infiniband", 400, 1),
        ("8x 400 Gbit/s InfiniBand", "infiniband", 400, 8),
        ("8 x NDR InfiniBand", "infiniband", 400, 8),
        ("HDR", "infiniband", 200, 1),
        ("100 Gbit/s Ethernet", "ethernet", 100, 1),
        ("2x 100 GbE", "ethernet", 100, 2),
        ("RoCE", "roce", None, 1),
        ("RoCEv2 200 Gbps", "roce", 200, 1),
        ("{kind: IB, speed_gbit_s: 400}", "infiniband", 400, 1),
        ('{kind: roce, speed_gbit_s: "400 Gbit/s", count: 4}', "roce", 400, 4),
    ],
)
def test_a_link_is_taken_as_people_write_it(
    tmp_path: Path, written: str, kind: str, gbit: int | None, ports: int
) -> None:
    facts = read(tmp_path, f"{WHOLE}hosts: 2\nlink: {written}\n")
    speed = gbit and gbit * 10**9
    assert facts["group"] == {
        "hosts": 2,
        "link": {"kind": kind, "speed_bits_per_s": speed, "count": ports},
    }


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("100 Gbit/s", "by InfiniBand, RoCE or Ethernet?"),
        ("InfiniBand over Ethernet", "wanted what joins the hosts as"),
        ("NDR 200 Gbit/s", "wanted what joins the hosts as"),
        ("RoCE Ethernet", "wanted what joins the hosts as"),
        ("{speed_gbit_s: 100}", "kind"),
        ("{kind: token ring}", "link.kind"),
    ],
)
def test_a_link_with_two_meanings_or_none_is_refused(
    tmp_path: Path, written: str, problem: str
) -> None:
    assert problem in refused(tmp_path, f"{WHOLE}hosts: 2\nlink: {written}\n").message


def test_hosts_without_a_link_leave_it_unknown(tmp_path: Path) -> None:
    facts = read(tmp_path, f'{WHOLE}hosts: "4"\n')
    documents.check_facts(facts, "vendor.yml", "mend it")
    assert facts["group"] == {"hosts": 4, "link": None}
    assert read(tmp_path, WHOLE)["group"] is None
    assert read(tmp_path, f"{WHOLE}hosts: 1\n")["group"] is None


def test_a_link_that_joins_nothing_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, f"{WHOLE}link: RoCE\n")
    assert "link: joins hosts that serve one model together" in error.message
    assert "hosts: 2" in error.fix


@pytest.mark.parametrize("hosts", ["0", "65", "two", "1.5"])
def test_a_number_of_hosts_that_is_none_is_refused(tmp_path: Path, hosts: str) -> None:
    assert "hosts" in refused(tmp_path, f"{WHOLE}hosts: {hosts}\n").message
