"""Spec sheets become facts; whatever is wrong with one is said with file, line and key."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_type_hints

import closed_form
import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_files import read_or_refused

from kimi_prov import schemas
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.commands import init
from kimi_prov.contract.documents.spec import SpecCpu, SpecGpus, SpecMemory
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.facts import document as documents
from kimi_prov.facts import schema_check, spec

SHIPPED = Path(__file__).resolve().parents[3] / "inventories" / "specs"
GIB = 1 << 30
VENDOR_A = """\
schema: kimi-prov/spec/v1
name: vendor-a
cpu: {model: "AMD EPYC 9654", sockets: 2, numa_nodes: 2}
memory: {dimms: 24, dimm_gb: 64, speed_mt_s: 4800}
gpus: {model: "H100 NVL 94GB", count: 2}
disks: [{kind: nvme, size_gb: 3840, count: 4, read_gb_s: 7}]
software: {os: "ubuntu-24.04", nvidia_driver: "570.133.20"}
price: {purchase_usd: 250000}
"""


def sheet(**changed: Any) -> dict[str, Any]:
    document: dict[str, Any] = {**yaml.safe_load(VENDOR_A), **changed}
    return {key: value for key, value in document.items() if value is not ...}


def read(tmp_path: Path, document: Any = None, text: str | None = None) -> dict[str, Any]:
    path = tmp_path / "vendor.yml"
    path.write_text(text if text is not None else yaml.safe_dump(document))
    return spec.read_sheet(path, load_catalogue())


def refused(tmp_path: Path, document: Any = None, text: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        read(tmp_path, document, text)
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    assert str(tmp_path / "vendor.yml") in caught.value.message
    return caught.value.message


def test_the_example_of_the_design(tmp_path: Path) -> None:
    found = read(tmp_path, text=VENDOR_A)
    documents.check_facts(found, "vendor.yml", "mend it")
    assert found["origin"]["kind"] == "spec"
    assert found["cpu"]["catalogue_name"] == "EPYC 9654"
    assert (found["cpu"]["sockets"], found["cpu"]["cores"], found["cpu"]["threads"]) == (
        2,
        192,
        384,
    )
    assert "avx512_bf16" in found["cpu"]["isa"]
    assert found["cpu"]["amx_permission"] is None
    assert [node["cpus"] for node in found["numa"]["nodes"]] == ["0-95,192-287", "96-191,288-383"]
    memory = found["memory"]
    assert memory["total_bytes"] == 1536 * GIB
    assert (memory["channels_populated"], memory["channels_total"]) == (24, 24)
    assert memory["bandwidth_bytes_per_s"] == {"measured": None, "theoretical": 921_600_000_000}
    assert len(memory["dimms"]) == 24
    assert [gpu["memory_bytes"] for gpu in found["gpus"]] == [95830 << 20] * 2
    assert found["nvidia"]["driver_loaded"] == "570.133.20"
    assert found["host"]["os"]["id"] == "ubuntu"
    assert found["host"]["glibc"] == "2.39"
    assert found["host"]["arch"] == "x86_64"
    assert found["disks"][0] == {
        "name": None,
        "kind": "nvme",
        "model": None,
        "size_bytes": 3_840_000_000_000,
        "read_bytes_per_s": 7_000_000_000,
    }
    assert len(found["disks"]) == 4
    assert found["price"] == {"purchase_usd": 250000, "hourly_usd": None}


def test_every_looked_up_value_says_so(tmp_path: Path) -> None:
    origins = read(tmp_path, sheet())["origins"]
    assert origins["cpu.isa"] == "catalogue: EPYC 9654"
    assert origins["gpus[1].memory_bytes"] == "catalogue: H100 NVL 94GB"
    assert origins["host.glibc"] == "catalogue: ubuntu 24.04"
    assert origins["numa.nodes"] == "sheet"


def test_any_field_of_the_catalogue_is_overridden(tmp_path: Path) -> None:
    cpu = {"model": "EPYC 9654", "cores": 64, "threads_per_core": 1, "isa": ["avx2"], "tdp_w": 300}
    gpus = {"model": "H200", "memory_gb": 120, "compute_capability": "9.1", "pcie_gen": 4}
    found = read(tmp_path, sheet(cpu=cpu, gpus=gpus))
    assert (found["cpu"]["cores"], found["cpu"]["threads"], found["cpu"]["isa"]) == (
        64,
        64,
        ["avx2"],
    )
    assert found["origins"]["cpu.cores"] == "sheet"
    [card] = found["gpus"]
    assert (card["memory_bytes"], card["compute_capability"]) == (120 * GIB, "9.1")
    assert (card["pcie"]["gen_max"], card["pcie"]["gen_card"]) == (4, 5)


@pytest.mark.parametrize(
    ("dimms", "sockets", "populated", "gb_s"),
    [
        (24, 2, 24, 921.6),
        (16, 2, 16, 614.4),
        (12, 1, 12, 460.8),
        (1, 2, 1, 38.4),
        (48, 2, 24, 691.2),  # two modules on a channel of an EPYC 9654 run at 3600 MT/s
    ],
)
def test_bandwidth_is_that_of_the_populated_channels(
    tmp_path: Path, dimms: int, sockets: int, populated: int, gb_s: float
) -> None:
    cpu = {"model": "EPYC 9654", "sockets": sockets}
    memory = {"dimms": dimms, "dimm_gb": 64, "speed_mt_s": 4800}
    found = read(tmp_path, sheet(cpu=cpu, memory=memory))["memory"]
    assert found["channels_populated"] == populated
    assert found["channels_total"] == 12 * sockets
    assert found["bandwidth_bytes_per_s"]["theoretical"] == pytest.approx(gb_s * 1e9)


def test_memory_runs_no_faster_than_the_processor_takes_it(tmp_path: Path) -> None:
    fast = {"dimms": 24, "dimm_gb": 64, "speed_mt_s": 5600}
    [module, *_] = read(tmp_path, sheet(memory=fast))["memory"]["dimms"]
    assert (module["speed_mt_s"], module["configured_mt_s"]) == (5600, 4800)
    cpu = {"model": "Xeon 6980P", "sockets": 2}
    mrdimm = read(tmp_path, sheet(cpu=cpu, memory={**fast, "speed_mt_s": 8800}))["memory"]
    assert mrdimm["bandwidth_bytes_per_s"]["theoretical"] == pytest.approx(1689.6e9)


def test_a_total_without_modules_leaves_the_channels_unknown(tmp_path: Path) -> None:
    found = read(tmp_path, sheet(memory={"total_gb": 1872}))["memory"]
    assert found["total_bytes"] == 1872 * GIB
    assert (found["dimms"], found["channels_populated"]) == (None, None)
    assert found["bandwidth_bytes_per_s"]["theoretical"] == pytest.approx(921.6e9)


def test_nodes_as_delivered_where_the_sheet_does_not_tell(tmp_path: Path) -> None:
    found = read(tmp_path, sheet(cpu={"model": "Xeon 6980P", "sockets": 2}))
    assert len(found["numa"]["nodes"]) == 6
    assert (found["cpu"]["nodes_per_socket"], found["cpu"]["snc"], found["cpu"]["nps"]) == (
        3,
        3,
        None,
    )
    assert found["origins"]["numa.nodes"] == "catalogue: Xeon 6980P"
    assert sum(n["memory_total_bytes"] for n in found["numa"]["nodes"]) == 1536 * GIB


@pytest.mark.parametrize(
    ("gpus", "matrix", "switch"),
    [
        ({"model": "H200", "count": 2}, [[0, 18], [18, 0]], True),
        ({"model": "L40S", "count": 2}, [[0, 0], [0, 0]], False),
        ({"model": "H100 NVL", "count": 2}, None, False),
        ({"model": "H100 NVL", "count": 2, "nvlink": "pairs"}, [[0, 12], [12, 0]], False),
        ({"model": "H200", "count": 2, "nvlink": "none"}, [[0, 0], [0, 0]], True),
        ([{"model": "H200"}, {"model": "L40S"}], None, False),
    ],
)
def test_links_are_the_sheet_s_or_the_board_s(
    tmp_path: Path, gpus: Any, matrix: Any, switch: bool
) -> None:
    found = read(tmp_path, sheet(gpus=gpus))["nvidia"]
    assert (found["nvlink"]["matrix"] if found["nvlink"] else None) == matrix
    assert found["nvswitch"] is switch


def test_cards_of_another_maker_and_no_cards(tmp_path: Path) -> None:
    amd = read(tmp_path, sheet(gpus={"model": "MI300X", "count": 8}))
    assert amd["nvidia"] is None
    assert {gpu["vendor"] for gpu in amd["gpus"]} == {"amd"}
    none = read(tmp_path, sheet(gpus=...))
    assert (none["gpus"], none["nvidia"]) == ([], None)


def test_what_the_sheet_leaves_out_is_unknown(tmp_path: Path) -> None:
    found = read(tmp_path, sheet(software=..., price=..., disks=...))
    documents.check_facts(found, "vendor.yml", "mend it")
    assert found["host"]["os"]["id"] is None
    assert found["python"]["version"] is None
    assert found["price"] is None
    assert found["disks"] == []
    assert found["nvidia"]["driver_loaded"] is None


@pytest.mark.parametrize(
    ("broken", "line", "says"),
    [
        (VENDOR_A.replace("EPYC 9654", "EPYC 9664"), 3, "cpu.model: unknown CPU"),
        (VENDOR_A.replace("EPYC 9654", "EPYC 9664"), 3, "EPYC 9654"),
        (VENDOR_A.replace("H100 NVL 94GB", "H101 NVL"), 5, "did you mean H100 NVL 94GB"),
        (VENDOR_A.replace("sockets: 2", "sockets: two"), 3, "cpu.sockets: wanted a whole number"),
        (VENDOR_A.replace("sockets: 2", "sockets: 3"), 3, "at most 2"),
        (VENDOR_A.replace("sockets:", "socket:"), 3, "did you mean 'sockets'"),
        (VENDOR_A.replace("numa_nodes: 2", "numa_nodes: 0"), 3, "cpu.numa_nodes: wanted 1 to 64"),
        (VENDOR_A.replace("dimms: 24, ", ""), 4, "memory: wanted dimms and dimm_gb, or total_gb"),
        (VENDOR_A.replace("memory:", "memmory:"), 4, "did you mean 'memory'"),
        (VENDOR_A.replace("kind: nvme", "kind: nvm"), 6, "disks[0].kind: wanted one of"),
        (VENDOR_A.replace('"570.133.20"', "570.1"), 7, "software.nvidia_driver: wanted text"),
        (VENDOR_A.replace("spec/v1", "spec/v2"), 1, "schema: wanted kimi-prov/spec/v1"),
        (VENDOR_A.replace("250000", ".nan"), 8, "price.purchase_usd: wanted a number"),
        (VENDOR_A.replace("price: {", "price: [{"), 9, "not YAML"),
        (VENDOR_A + "x: 2024-99-99\n", 9, "not YAML: this is no timestamp"),
        ("", None, "the document: wanted a mapping"),
        ("- 1\n", 1, "the document: wanted a mapping"),
        ("name: x\n", 1, "key 'cpu' is missing"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_key(
    tmp_path: Path, broken: str, line: int | None, says: str
) -> None:
    message = refused(tmp_path, text=broken)
    assert says in message
    if line is not None:
        assert f"vendor.yml:{line}:" in message


def test_the_sheets_to_look_at_are_where_the_message_says(tmp_path: Path) -> None:
    path = tmp_path / "vendor.yml"
    path.write_text("schema: kimi-prov/spec/v1\n")
    with pytest.raises(UserError) as caught:
        spec.read_sheet(path, load_catalogue())
    folder = Path(str(caught.value.fix).split()[1])
    assert folder.is_absolute()
    assert list(folder.glob("*.yml"))


def test_files_that_are_no_sheets(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        spec.read_sheet(tmp_path / "none.yml", load_catalogue())
    with pytest.raises(UserError, match="cannot be read"):
        spec.read_sheet(tmp_path, load_catalogue())
    (tmp_path / "bin.yml").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(UserError, match="not UTF-8"):
        spec.read_sheet(tmp_path / "bin.yml", load_catalogue())
    (tmp_path / "big.yml").write_text("#" * (1 << 21))
    with pytest.raises(UserError, match="larger than"):
        spec.read_sheet(tmp_path / "big.yml", load_catalogue())


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yml")), ids=lambda path: path.stem)
def test_shipped_sheets_are_whole(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    closed_form.validate(document, "spec")
    found = spec.read_sheet(path, load_catalogue())
    documents.check_facts(found, str(path), "mend it")
    assert document["name"] == path.stem
    assert document["note"]
    json.dumps(found, allow_nan=False)


def test_what_the_issue_asks_to_ship_is_there() -> None:
    names = {path.stem for path in SHIPPED.glob("*.yml")}
    assert {f"reference-00{n}" for n in range(5)} <= names
    assert "quote-2x-8x-h100" in names
    assert len(names) == 13


def test_sheets_are_no_inventory_to_start_from() -> None:
    assert "specs" not in init.list_profiles()
    assert "localhost" in init.list_profiles()


# --- whatever is in the file ------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.dates()
    | st.sampled_from(["EPYC 9654", "H200", "nvme", "kimi-prov/spec/v1", 0, 1, 2.0, -1, 1e300])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=10) | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=8,
)
PATHS = [
    ("schema",),
    ("name",),
    ("note",),
    ("extra",),
    *[("cpu",), *[("cpu", key) for key in get_type_hints(SpecCpu)]],
    *[("memory",), *[("memory", key) for key in get_type_hints(SpecMemory)]],
    *[("gpus",), *[("gpus", key) for key in get_type_hints(SpecGpus)]],
    *[("disks",), ("disks", 0), ("disks", 0, "size_gb"), ("disks", 0, "count"), ("nics",)],
    *[("software",), ("software", "os"), ("software", "nvidia_driver"), ("price",)],
    ("price", "hourly_usd"),
]


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    if isinstance(document, dict):
        return {**document, path[0]: put(document.get(path[0]), path[1:], value)}
    if isinstance(document, list) and path[0] in range(len(document)):
        return [put(v, path[1:], value) if n == path[0] else v for n, v in enumerate(document)]
    return {path[0]: put(None, path[1:], value)}


def judge(path: Path) -> None:
    """Read it, and hold what comes of it against its schema."""
    found = read_or_refused(lambda file: spec.read_sheet(file, load_catalogue()), path)
    if found is not None:
        documents.check_facts(found, str(path), "mend it")
        json.dumps(found, allow_nan=False)


@settings(max_examples=50)
@given(changes=st.lists(st.tuples(st.sampled_from(PATHS), VALUES), min_size=1, max_size=3))
def test_no_sheet_ends_in_a_traceback(tmp_path_factory, changes) -> None:
    document = yaml.safe_load(VENDOR_A)
    for path, value in changes:
        document = put(document, path, value)
    file = tmp_path_factory.getbasetemp() / "any.yml"
    file.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    judge(file)


@settings(max_examples=100)
@given(
    text=st.binary(max_size=200)
    | st.text(alphabet="{}[]:,-&*!|>%@`'\"#? \n\tab1.<", max_size=80).map(str.encode)
)
def test_no_bytes_end_in_a_traceback(tmp_path_factory, text: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.yml"
    file.write_bytes(text)
    judge(file)


@settings(max_examples=100)
@given(at=st.integers(0, len(VENDOR_A)), size=st.integers(0, 40), new=st.text(max_size=8))
def test_no_torn_sheet_ends_in_a_traceback(tmp_path_factory, at: int, size: int, new: str) -> None:
    file = tmp_path_factory.getbasetemp() / "torn.yml"
    file.write_text(VENDOR_A[:at] + new + VENDOR_A[at + size :], encoding="utf-8", errors="replace")
    judge(file)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        "{a: " * 5000,
        "a: &a [x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nname: *c\n",
        "a: &a {b: *a}\n",
        "!!python/object/apply:os.system [x]",
        "!!binary '*'",
        "<<: 1\n",
        "? [a]\n: b\n",
        "name: 1:99:99999999999999999999\n",
        "name: " + "9" * 5000,
        "\ufeffschema: x\n",
        "--- a\n--- b\n",
        "name: 0b\n",
        "name: 2001-12-14t21:59:43.10-99:99\n",
    ],
)
def test_yaml_s_own_traps(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trap.yml"
    file.write_text(text, encoding="utf-8")
    judge(file)


def finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and finite(part) for key, part in value.items())
    if isinstance(value, list):
        return all(finite(part) for part in value)
    return not isinstance(value, float) or math.isfinite(value)


@settings(max_examples=100)
@given(changes=st.lists(st.tuples(st.sampled_from(PATHS), VALUES), min_size=1, max_size=2))
def test_our_validator_and_the_library_s_agree(changes) -> None:
    document = yaml.safe_load(VENDOR_A)
    for path, value in changes:
        document = put(document, path, value)
    if not finite(document):
        return
    library = jsonschema.Draft202012Validator(schemas.load("spec")).is_valid(document)
    assert library is not any(schema_check.find_misfits(document, schemas.load("spec")))
