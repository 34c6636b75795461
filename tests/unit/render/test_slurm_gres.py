"""Generic resources in the words of SLURM: what a job asks for, and what does not fit the plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run

from kimi_prov.facts.gres import Gres, read_gres

SHEET = Path(__file__).resolve().parents[3] / "inventories" / "specs" / "quote-8x-h200.yml"


@pytest.mark.parametrize(
    ("text", "gres"),
    [
        ("gpu:8", Gres("gpu:8", 8)),
        ("gpu:h200:8", Gres("gpu:h200:8", 8, "h200")),
        ("gpu:h200:8(S:0-1)", Gres("gpu:h200:8", 8, "h200")),
        ("Gres=gpu:nvidia_h200:8(S:0-1)", Gres("gpu:nvidia_h200:8", 8, "nvidia_h200")),
        ("GresUsed=gpu:h200:8(IDX:0-7)", Gres("gpu:h200:8", 8, "h200")),
        ("gres/gpu:h200=8", Gres("gpu:h200:8", 8, "h200")),
        ("gres:gpu:8", Gres("gpu:8", 8)),
        ("gpu:h200:8(S:0-1),shard:64(S:0-1)", Gres("gpu:h200:8", 8, "h200")),
        ("gpu:h200:8,mps:800", Gres("gpu:h200:8", 8, "h200")),
        ("gpu:h200:8,nvme:1", Gres("gpu:h200:8,nvme:1", 8, "h200")),
        ("gpu", Gres("gpu", 1)),
        ("gpu:a100_3g.20gb:2(S:0)", Gres("gpu:a100_3g.20gb:2", 2, "a100_3g.20gb", slices=True)),
        ("gpu:1g.18gb:56", Gres("gpu:1g.18gb:56", 56, "1g.18gb", slices=True)),
        ("gpu:h100:4(S:0),gpu:h200:4(S:1)", Gres("gpu:h100:4,gpu:h200:4", 8, "h100,h200")),
        ("(null)", Gres()),
        ("Gres=(null)", Gres()),
        ("N/A", Gres()),
        ("nvme:1", Gres()),
        ("h200:8", Gres()),
        # Reports: SlurmCommander#5, slurm-usage#11, scontrol of a TWCC H100 node, sinfo of a
        # launcher of notebooks, gres strings of monitors (nvidia_b200 with MIG beside it).
        ("  Gres=gpu:H100:8(S:0-1)", Gres("gpu:H100:8", 8, "H100")),
        ("gpu:(null):4(IDX:0-3)", Gres("gpu:4", 4)),
        ("node0001,gpu:8(S:0-3)", Gres("gpu:8", 8)),
        ("hgpn01 gpu:h200:8(S:0-1)", Gres("gpu:h200:8", 8, "h200")),
        ("gpu|24|191000+|gpu:v100:2(S:0-1)", Gres("gpu:v100:2", 2, "v100")),
        ("interactive-cpu2|64|515000|gpu:a100:2(S:2,5)", Gres("gpu:a100:2", 2, "a100")),
        ("CfgTRES=cpu=104,mem=1900000M,billing=104,gres/gpu=8", Gres("gpu:8", 8)),
        ("cpu=64,mem=256G,gres/gpu=8,gres/gpu:h200=8", Gres("gpu:h200:8", 8, "h200")),
        (
            "CfgTRES=cpu=192,mem=2060000M,billing=448,gres/gpu=16,gres/gpu:nvidia_b200=4",
            Gres("gpu:nvidia_b200:4", 4, "nvidia_b200"),
        ),
        ("gpu:a100:no_consume:4", Gres("gpu:a100:4", 4, "a100")),
        ("--gpus-per-node=h200:8", Gres("gpu:h200:8", 8, "h200")),
        (
            "gpu:1g.33gb:4,gpu:1g.16gb:7",
            Gres("gpu:1g.33gb:4,gpu:1g.16gb:7", 11, "1g.33gb,1g.16gb", slices=True),
        ),
        (
            "gpu:nvidia_h100_80gb_hbm3_3g.40gb:16(S:0-1)",
            Gres(
                "gpu:nvidia_h100_80gb_hbm3_3g.40gb:16",
                16,
                "nvidia_h100_80gb_hbm3_3g.40gb",
                slices=True,
            ),
        ),
        ("pfsdir:scratch:1,pfsdir:ess:1,ime:1,gpfs:project:1", Gres()),
    ],
)
def test_what_slurm_prints_is_read(text: str, gres: Gres) -> None:
    assert read_gres(text) == gres


def render(tmp_path: Path, variables: str) -> tuple[int, str, str]:
    file = tmp_path / "vars.yml"
    file.write_text(variables)
    output = tmp_path / "out"
    done = run(
        *("render", "slurm", SHEET, "--root", "/p", "--vars", file, "--output", output),
    )
    jobs = "".join(path.read_text() for path in sorted(output.rglob("*.sbatch")))
    return done.returncode, done.stdout + done.stderr, jobs


def test_a_job_asks_for_what_sbatch_takes(tmp_path: Path) -> None:
    code, _, jobs = render(tmp_path, 'kimi_slurm_gres: "gpu:h200:8(S:0-1)"\n')
    assert code == 0
    assert "#SBATCH --gres=gpu:h200:8\n" in jobs


@pytest.mark.parametrize(
    ("gres", "words"),
    [
        ("gpu:h200:4(S:0)", "4 GPUs"),
        ("gpu", "1 GPU"),
        ("(null)", "no GPU"),
        ("nvme:1", "no GPU"),
        ("gpu:h200_1g.18gb:56", "slices"),
        ("gpu:h100:4,gpu:h200:4", "several kinds"),
    ],
)
def test_what_does_not_fit_the_plan_is_an_error_and_no_job(
    tmp_path: Path, gres: str, words: str
) -> None:
    code, said, jobs = render(tmp_path, f'kimi_slurm_gres: "{gres}"\n')
    assert (code, jobs) == (3, "")
    assert "slurm.gres" in said
    assert words in " ".join(said.split())


def test_another_card_than_the_sheet_has_is_a_warning(tmp_path: Path) -> None:
    code, said, _ = render(tmp_path, 'kimi_slurm_gres: "gpu:a100:8"\n')
    assert code == 0
    assert "slurm.gres_kind" in said
    code, said, _ = render(tmp_path / "..", 'kimi_slurm_gres: "gpu:tesla_h200:8"\n')
    assert "slurm.gres_kind" not in said


def test_the_mark_of_the_default_partition_is_no_part_of_its_name(tmp_path: Path) -> None:
    code, _, jobs = render(tmp_path, 'kimi_slurm_partition: "gpu*"\n')
    assert code == 0
    assert "#SBATCH --partition=gpu\n" in jobs


def test_a_name_in_one_word_is_a_card_s_name(tmp_path: Path) -> None:
    """As AWS ParallelCluster calls its cards (report of a g7e cluster)."""
    code, said, _ = render(tmp_path, 'kimi_slurm_gres: "gpu:rtxproserver6000:8"\n')
    assert code == 0
    assert "names RTX PRO 6000 Blackwell (Server)" in " ".join(said.split())


def test_a_value_is_read_with_the_label_that_scontrol_prints(tmp_path: Path) -> None:
    variables = [
        "kimi_slurm_partition: PartitionName=dev",
        "kimi_slurm_time: MaxTime=UNLIMITED",
        "kimi_slurm_constraint: ActiveFeatures=icelake,gpua40",
        "kimi_slurm_qos: N/A",
        "kimi_slurm_account: (null)",
    ]
    code, said, jobs = render(tmp_path, "\n".join(variables))
    assert code == 0, said
    for line in ("partition=dev", "time=0", 'constraint="icelake,gpua40"'):
        assert f"#SBATCH --{line}\n" in jobs
    assert "--qos" not in jobs
    assert "--account" not in jobs


def test_scontrol_in_place_of_variables_is_refused_with_the_variables(tmp_path: Path) -> None:
    text = "NodeName=hgpn01 CoresPerSocket=56\n   Gres=gpu:H100:8(S:0-1)\n   Partitions=dev,8gpus\n"
    code, said, _ = render(tmp_path, text)
    assert code == 2
    for words in ('kimi_slurm_gres: "gpu:H100:8"', 'kimi_slurm_partition: "dev"', "target"):
        assert words in said
