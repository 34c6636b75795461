"""What `check` says of machines that people buy now, and of the newest models on them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kimi_prov.cli import cli

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SHEET = """\
schema: kimi-prov/spec/v1
name: {name}
cpu: {{model: "{cpu}", sockets: 2}}
memory: {{total_gb: 1536}}
gpus: {{model: "{gpu}", count: {count}}}
disks: [{{kind: nvme, size_gb: 7680, count: 4, read_gb_s: 7}}]
software: {{os: ubuntu-24.04}}
"""
MACHINES = [
    ("8x B300", "Xeon 6960P", "B300", 8),
    ("8x B200", "EPYC 9654", "B200", 8),
    ("8x H200", "EPYC 9654", "H200", 8),
    ("4x GB300", "NVIDIA Grace", "GB300", 4),
    ("8x MI355X", "EPYC 9654", "MI355X", 8),
    ("8x MI325X", "EPYC 9654", "MI325X", 8),
    ("4x RTX PRO 6000", "EPYC 9654", "RTX PRO 6000", 4),
    ("8x RTX PRO 6000", "EPYC 9654", "RTX PRO 6000 Max-Q", 8),
    ("1x RTX 5090", "EPYC 9654", "RTX 5090", 1),
    ("8x Rubin", "EPYC 9654", "Rubin", 8),
]
BY_HAND = {"engine.not_provisioned"}
Targets = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def sheets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("sheets")
    files = {}
    for name, cpu, gpu, count in MACHINES:
        files[name] = folder / f"{name.replace(' ', '-')}.yml"
        files[name].write_text(SHEET.format(name=name, cpu=cpu, gpu=gpu, count=count))
    return files


def check(files: Mapping[str, Path], *options: str, form: str = "json") -> str:
    words = ["check", *map(str, files.values()), *options, "--format", form]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code in (0, 3), done.output
    return done.stdout


def targets(files: Mapping[str, Path], *options: str) -> Targets:
    return {row["name"]: row for row in json.loads(check(files, *options))["targets"]}


@pytest.fixture(scope="module")
def k26(sheets: Mapping[str, Path]) -> Targets:
    return targets(sheets, "--model", "kimi-k2.6")


@pytest.fixture(scope="module")
def k3(sheets: Mapping[str, Path]) -> Targets:
    return targets(sheets, "--model", "kimi-k3")


def ids(target: Mapping[str, Any], severity: str = "blocker") -> set[str]:
    return {row["id"] for row in target["findings"] if row["severity"] == severity}


def titles(target: Mapping[str, Any]) -> set[str]:
    return {row["title"] for row in target["findings"]}


def engine(target: Mapping[str, Any]) -> tuple[str, str, str, bool]:
    row = target["plan"]["engine"]
    return row["name"], row["variant"], row["version"], row["provisioned"]


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("8x B300", ("vllm", "cuda", "0.33.0", True)),
        ("4x GB300", ("vllm", "cuda", "0.33.0", False)),
        ("8x MI355X", ("vllm", "rocm", "0.33.0", False)),
        ("8x RTX PRO 6000", ("vllm", "cuda", "0.33.0", True)),
    ],
)
def test_kimi_k26_fits_the_machines_of_today(
    k26: Targets, name: str, chosen: tuple[str, str, str, bool]
) -> None:
    # The packages are pinned for x86-64 and CUDA: who would buy another machine is told before.
    assert ids(k26[name]) == (set() if chosen[3] else BY_HAND)
    assert engine(k26[name]) == chosen
    assert k26[name]["plan"]["throughput"]["decode_tok_s"]["expected"] > 0


@pytest.mark.parametrize("name", ["4x RTX PRO 6000", "1x RTX 5090"])
def test_cards_that_hybrids_are_built_with_have_an_engine(k26: Targets, name: str) -> None:
    """The wheels carry code for 12.0; nobody is known to have served with these very wheels."""
    target = k26[name]
    assert engine(target) == ("ktransformers", "cuda", "0.7.2", True)
    assert not ids(target)
    assert "This project has not served KTransformers on these GPUs" in titles(target)
    command = target["plan"]["instances"][0]["argv"]
    # Its kernel has a configuration for the 100 KiB of shared memory that these cards have.
    assert command[command.index("--attention-backend") + 1] == "flashinfer"


def test_the_engine_has_machine_code_for_the_card(sheets: Mapping[str, Path]) -> None:
    """0.19.1 was compiled with CUDA 12.9 for 10.0a and 12.0: B300 is 10.3."""
    own = targets(sheets, "--model", "kimi-k2.5")
    names = ("8x B200", "8x H200", "8x B300", "4x GB300")
    assert {engine(own[name])[2] for name in names} == {"0.33.0"}
    assert not ids(own["8x B300"])
    assert ids(own["4x GB300"]) == BY_HAND


@pytest.mark.parametrize("name", ["8x B300", "8x MI355X"])
def test_kimi_k3_fits_where_its_recipe_was_run(k3: Targets, name: str) -> None:
    assert ids(k3[name]) == (BY_HAND if name == "8x MI355X" else set())
    assert engine(k3[name])[2] == "0.33.0"
    command = k3[name]["plan"]["instances"][0]["argv"]
    for option in ("--tool-call-parser", "--reasoning-parser"):
        assert command[command.index(option) + 1] == "kimi_k3"
    assert "--attention-backend" not in command
    assert "This project has not served Kimi-K3" in titles(k3[name])


@pytest.mark.parametrize("name", ["8x H200", "8x B200", "4x GB300", "8x RTX PRO 6000"])
def test_kimi_k3_is_refused_for_its_size(k3: Targets, name: str) -> None:
    assert "gpu.memory" in ids(k3[name])
    [row] = [row for row in k3[name]["findings"] if row["id"] == "gpu.memory"]
    assert "GiB of weights" in row["required"]


def test_kimi_k3_on_cards_without_fp4_says_so(k3: Targets) -> None:
    [row] = [row for row in k3["8x H200"]["findings"] if row["id"] == "gpu.nvfp4"]
    assert row["title"].startswith("These GPUs have no FP4 units: MXFP4")
    assert "4.4 GB" not in row["required"]
    assert "Kimi-K3 was shown on AMD's MI355X and MI350X alone" in titles(k3["8x MI325X"])
    assert "Kimi-K3 was shown on AMD's MI355X and MI350X alone" not in titles(k3["8x MI355X"])


def test_the_state_of_each_sequence_takes_memory(k3: Targets, sheets: Mapping[str, Path]) -> None:
    """69 layers of 96 heads, 128 x 128 at 32 bit, and three convolutions of three tokens."""
    one = {"8x B300": sheets["8x B300"]}
    more = targets(one, "--model", "kimi-k3", "--concurrency", "64")["8x B300"]
    state = 69 * (96 * 128 * 128 * 4 + 3 * 96 * 128 * 3 * 2)
    sampler = 163840 * 32
    left = [t["plan"]["memory"]["kv_available_bytes_per_gpu"] for t in (k3["8x B300"], more)]
    assert left[0] - left[1] == pytest.approx(48 * (state / 8 + sampler), rel=0.2)


def test_formats_of_the_other_maker_are_told_apart(sheets: Mapping[str, Path]) -> None:
    pair = {name: sheets[name] for name in ("8x MI355X", "8x B300")}
    nvidia = targets(pair, "--model", "kimi-k2.5", "--weights-format", "nvfp4")
    assert ids(nvidia["8x MI355X"]) == {"engine.format"} | BY_HAND
    assert ids(nvidia["8x B300"]) == set()
    amd = targets(pair, "--model", "kimi-k2.5", "--weights-format", "mxfp4")
    assert ids(amd["8x MI355X"]) == BY_HAND
    assert engine(amd["8x MI355X"])[2] == "0.33.0"


def test_a_machine_by_hand_is_never_recommended_and_ranked_apart(
    sheets: Mapping[str, Path],
) -> None:
    names = ("8x MI325X", "4x GB300", "8x H200", "1x RTX 5090")
    several = {name: sheets[name] for name in names}
    document = json.loads(check(several))
    answer = document["answer"]
    assert document["ok"] is False
    assert answer["recommended"] == "8x H200"
    order = [(row["target"], row["by_hand"], row["serves"]) for row in answer["ranking"]]
    assert {name for name, by_hand, _ in order if by_hand} == {"8x MI325X", "4x GB300"}
    assert [row for row in order if row[2]] == order[:2]
    assert "Possible by hand: " in answer["sentence"]
    for name in ("8x MI325X", "4x GB300"):
        alone = json.loads(check({name: sheets[name]}))
        assert alone["ok"] is False
        assert "by hand alone" in alone["answer"]["sentence"]


def test_a_card_that_is_only_announced_is_said_so(
    k26: Targets, k3: Targets, sheets: Mapping[str, Path]
) -> None:
    [row] = [row for row in k26["8x Rubin"]["findings"] if row["id"] == "catalogue.status"]
    assert row["severity"] == "warning"
    assert "only announced" in row["title"]
    assert "checked 2026-11-" in row["observed"]
    assert "engine.capability" in ids(k26["8x Rubin"], "warning")
    assert "engine.capability" in ids(k3["8x Rubin"])
    one = {"8x Rubin": sheets["8x Rubin"]}
    for form in ("text", "markdown", "html"):
        assert "only announced" in " ".join(check(one, form=form).split())
