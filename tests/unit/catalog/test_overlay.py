"""A site's own rows: laid over ours by name, refused with file, line and key where not whole."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import command_line
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_prov.catalog import row_files
from kimi_prov.catalog.loader import OVERLAY, Catalogue, load_catalogue
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.facts import spec

if TYPE_CHECKING:
    from pathlib import Path

CARD = """
gpus:
  - name: H300 SXM
    vendor: nvidia
    memory_gb: 288
    bandwidth_gb_s: 9000
    tflops_bf16: 2500
    compute_capability: "11.0"
    nvlink_gb_s: 1800
    nvlink_links: 18
    nvswitch: true
    pcie_gen: 6
    pcie_gb_s: 100
    source: a vendor's letter
    confidence: low
"""
MODEL = """
models:
  - name: kimi-k2.8
    repo: moonshotai/Kimi-K2.8
    architecture: kimi-k25
    context: 262144
    native_format: int4
    other_bytes: 20000000
    source: its config.json
    confidence: high
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_a_card_is_added_by_one_file_and_a_sheet_can_name_it(tmp_path: Path) -> None:
    catalogue = load_catalogue(write(tmp_path, gpus=CARD))
    sheet = tmp_path / "sheet.yml"
    sheet.write_text(
        "schema: kimi-prov/spec/v1\nname: new\ncpu: {model: EPYC 9654, sockets: 2}\n"
        "memory: {dimms: 24, dimm_gb: 64}\ngpus: {model: h300 sxm, count: 8}\n"
    )
    found = spec.read_sheet(sheet, catalogue)
    assert [gpu["model"] for gpu in found["gpus"]] == ["H300 SXM"] * 8
    assert found["nvidia"]["nvswitch"] is True
    with pytest.raises(UserError, match="unknown GPU"):
        load_catalogue().gpu("H300 SXM")


def test_a_model_is_added_by_one_file_and_takes_known_dimensions(tmp_path: Path) -> None:
    catalogue = load_catalogue(write(tmp_path, models=MODEL))
    assert (
        catalogue.model("kimi-k2.8").architecture
        == load_catalogue().model("kimi-k2.5").architecture
    )
    assert len(catalogue.models) == len(load_catalogue().models) + 1


def test_a_row_of_ours_is_changed_in_the_keys_that_are_given(tmp_path: Path) -> None:
    text = "gpus: [{name: H200 SXM, tdp_w: 650, source: our limit, confidence: high}]"
    catalogue = load_catalogue(write(tmp_path, gpus=text))
    ours, theirs = load_catalogue().gpu("H200"), catalogue.gpu("H200")
    assert (theirs.tdp_w, theirs.source) == (650, "our limit")
    assert (theirs.memory_mib, theirs.bandwidth_gb_s) == (ours.memory_mib, ours.bandwidth_gb_s)
    assert [row.name for row in catalogue.gpus] == [row.name for row in load_catalogue().gpus]


def test_prices_of_a_site_win(tmp_path: Path) -> None:
    text = (
        "assumptions: [{name: electricity, value: 0.31, unit: USD per kWh, source: our bill, "
        "confidence: high}]"
    )
    catalogue = load_catalogue(write(tmp_path, prices=text))
    assert catalogue.prices.assumed("electricity") == 0.31
    assert catalogue.prices.api == load_catalogue().prices.api


def test_the_environment_names_the_directory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(OVERLAY, str(write(tmp_path, gpus=CARD)))
    assert load_catalogue().gpu("H300 SXM").memory_gb == 288


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (CARD.replace("memory_gb: 288", "memory_gb: lots"), 5, "gpus[0].memory_gb: wanted a whole"),
        (CARD.replace("vendor: nvidia", "vendor: nvidea"), 4, "gpus[0].vendor: wanted one of"),
        (CARD.replace("pcie_gen:", "pcie_jen:"), 12, "did you mean 'pcie_gen'"),
        (CARD.replace("    pcie_gen: 6\n", ""), 3, "'pcie_gen'"),
        (CARD.replace("    source: a vendor's letter\n", ""), 3, "'source' is missing"),
        (CARD.replace("    confidence: low\n", ""), 3, "'confidence' is missing"),
        (CARD.replace("confidence: low", "confidence: certain"), 15, "high, medium, low"),
        (CARD.replace("bandwidth_gb_s: 9000", "bandwidth_gb_s: .nan"), 6, "wanted a number"),
        (
            CARD.replace("pcie_gb_s: 100", "pcie_gb_s: 0.0"),
            13,
            "gpus[0].pcie_gb_s: wanted a number",
        ),
        (CARD.replace("memory_gb: 288", "memory_gb: -288"), 5, "of at least 0, found -288"),
        ("gpus:\n  - H300\n", 2, "wanted a row"),
        ("gpus: H300\n", 1, "wanted a list"),
        ("- gpus\n", 1, "wanted a mapping"),
        ("gpus: [\n", 2, "not YAML"),
        ("gpus: [{name: [a], source: x, confidence: low}]", 1, "'name' is missing"),
        ("gpus: [{1: 2}]", 1, "wanted a row"),
    ],
)
def test_rows_that_are_not_whole_name_file_line_and_key(
    tmp_path: Path, text: str, line: int, says: str
) -> None:
    with pytest.raises(UserError) as caught:
        _ = load_catalogue(write(tmp_path, gpus=text)).gpus
    assert f"{tmp_path}/gpus.yaml:{line}" in caught.value.message
    assert says in caught.value.message
    assert caught.value.exit_code == ExitCode.BAD_INPUT


@pytest.mark.parametrize(
    ("name", "whole"),
    [("utilisation", False), ("amortise", False), ("electricity", True), ("cooling", True)],
)
def test_what_a_cost_is_divided_by_is_never_zero(tmp_path: Path, name: str, whole: bool) -> None:
    row = {"name": name, "value": 0, "unit": "x", "source": "y", "confidence": "low"}
    folder = write(tmp_path, prices=yaml.safe_dump({"assumptions": [row]}))
    if whole:
        assert load_catalogue(folder).prices.assumed(name) == 0
        return
    with pytest.raises(UserError, match=r"value: wanted a number above 0, found 0"):
        _ = load_catalogue(folder).prices


BAD_NAMES = [
    "../../../etc/systemd/x",
    "..",
    ".",
    "a/b",
    "-rf",
    ".hidden",
    "a b",
    "a\x1bb",
    "a\nb",
    "\u202eb",
    "",
    "x" * 200,
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_no_plain_one_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    document = yaml.safe_load(MODEL)
    document["models"][0]["name"] = name
    with pytest.raises(UserError) as caught:
        _ = load_catalogue(write(tmp_path, models=yaml.safe_dump(document))).models
    assert "models[0].name: wanted a plain name" in caught.value.message
    assert f"{tmp_path}/models.yaml:" in caught.value.message
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("file", "kind", "key", "value"),
    [
        ("models", "models", "repo", "../.."),
        ("models", "models", "repo", "a/.."),
        ("models", "models", "repo", "kimi"),
        ("models", "models", "repo", "a/b@c"),
        ("models", "models", "revision", ".."),
        ("models", "models", "revision", "refs/../x"),
        ("models", "models", "revision", "a\nb"),
        ("models", "drafts", "name", "../x"),
        ("models", "drafts", "repo", "a/../b"),
        ("engines", "engines", "version", "../../x"),
        ("engines", "engines", "variant", "a/b"),
        ("engines", "engines", "module", "-c"),
        ("engines", "engines", "python", ["3.11/../x"]),
        ("drivers", "releases", "version", "580.1\nPin-Priority: 1"),
        ("drivers", "repositories", "key", "../key.pub"),
    ],
)
def test_other_texts_that_become_paths_are_plain_as_well(
    tmp_path: Path, file: str, kind: str, key: str, value: object
) -> None:
    known = yaml.safe_load((row_files.HERE / f"{file}.yaml").read_text(encoding="utf-8"))
    row = {**known[kind][0], "source": "a letter", "confidence": "low", key: value}
    catalogue = load_catalogue(write(tmp_path, **{file: yaml.safe_dump({kind: [row]})}))
    with pytest.raises(UserError, match=rf"{kind}\[0\]\.{key}.*: wanted a") as caught:
        _ = (catalogue.models, catalogue.drafts, catalogue.engines, catalogue.drivers)
    assert caught.value.exit_code == ExitCode.BAD_INPUT


def test_dimensions_that_are_not_there_get_the_nearest(tmp_path: Path) -> None:
    text = MODEL.replace("architecture: kimi-k25", "architecture: kimi-k255")
    with pytest.raises(UserError, match="did you mean kimi-k25") as caught:
        _ = load_catalogue(write(tmp_path, models=text)).models
    assert f"{tmp_path}/models.yaml:5" in caught.value.message


def test_a_fault_in_dimensions_of_a_site_is_the_site_s(tmp_path: Path) -> None:
    text = "architectures: {kimi-k25: {layers: many}}\nmodels: []\n"
    with pytest.raises(UserError, match="layers: wanted a whole number") as caught:
        _ = load_catalogue(write(tmp_path, models=text)).models
    assert f"{tmp_path}/models.yaml:1" in caught.value.message
    assert caught.value.exit_code == ExitCode.BAD_INPUT


def test_a_driver_that_is_no_version_names_no_branch(tmp_path: Path) -> None:
    row = "name: '99.0', driver: ², compatible_driver: ², source: x, confidence: low"
    assert (
        load_catalogue(write(tmp_path, drivers=f"cuda: [{{{row}}}]")).drivers.branch_for("99.0")
        is None
    )


def test_a_directory_that_is_none_of_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("gpus: []")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("none", "file", "loop", "n" * 300):
        with pytest.raises(UserError, match="no such directory"):
            load_catalogue(tmp_path / name)
    with pytest.raises(UserError, match=r"no file of catalogue rows lies there; .*gpus\.yaml"):
        load_catalogue(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "nothing"])
def test_what_lies_in_the_place_of_a_file_of_rows_is_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "gpus.yaml"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("gpus.yaml" if kind == "loop" else "elsewhere")
    with pytest.raises(UserError, match=r"gpus\.yaml: cannot be read") as caught:
        _ = load_catalogue(tmp_path).gpus
    assert caught.value.exit_code == ExitCode.BAD_INPUT


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=9) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = ["name", "vendor", "memory_gb", "aliases", "tdp_w", "nvswitch", "source", "confidence", "x"]


@settings(max_examples=40)
@given(key=st.sampled_from(["gpus", *KEYS]), value=VALUES)
def test_no_overlay_ends_in_a_traceback(tmp_path_factory, key: str, value: object) -> None:
    document = yaml.safe_load(CARD)
    if key == "gpus":
        document = {"gpus": value}
    else:
        document["gpus"][0][key] = value
    folder = tmp_path_factory.mktemp("site")
    write(folder, gpus=yaml.safe_dump(document, allow_unicode=True))
    refusal = None
    try:
        assert Catalogue(folder).gpus
    except UserError as error:
        refusal = error.message
    assert refusal is None or f"{folder}/gpus.yaml" in refusal


def test_a_sites_lock_stands_for_ours_of_that_name_and_others_are_added(tmp_path: Path) -> None:
    folder = write(tmp_path, models=MODEL) / "locks"
    folder.mkdir()
    (folder / "vllm-cuda-0.25.1-cp312.txt").write_text("vllm==0.25.1\n")
    (folder / "uv.txt").write_text("uv==0.0.1\n")
    ours, theirs = load_catalogue(), load_catalogue(tmp_path)
    assert theirs.lock("vllm-cuda-0.25.1-cp312.txt") == "vllm==0.25.1\n"
    assert theirs.lock_path("uv.txt") == folder / "uv.txt"
    assert theirs.locks["uv.txt"] != ours.locks["uv.txt"]
    assert theirs.locks["ray.txt"] == ours.locks["ray.txt"]


def test_the_command_shows_a_site_s_rows(tmp_path: Path) -> None:
    folder = write(tmp_path, gpus=CARD)
    words = ("catalog", "gpus", "H300 SXM")
    shown = command_line.run(*words, "--catalog", folder, "--format", "json")
    assert shown.returncode == 0, shown.stderr
    [row] = json.loads(shown.stdout)["rows"]
    assert (row["name"], row["source"]) == ("H300 SXM", "a vendor's letter")
    assert command_line.run(*words).returncode == ExitCode.BAD_INPUT


def test_the_command_refuses_what_it_does_not_know() -> None:
    for arguments, near in ((("gpu",), "gpus"), (("cpus", "EPYC 9664"), "EPYC 9654")):
        done = command_line.run("catalog", *arguments)
        assert done.returncode == ExitCode.BAD_INPUT
        assert not done.stdout
        assert "did you mean" in done.stderr
        assert near in done.stderr


def test_the_command_writes_a_file(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    assert command_line.run("catalog", "drivers", "--output", str(file)).returncode == 0
    assert "marlin-ptx" in file.read_text()
