"""Generic resources in the words of SLURM: what a job asks for, and what does not fit the plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run

from kimi_prov.render.slurm.gres import Gres, read_gres

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
