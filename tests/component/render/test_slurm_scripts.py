"""The scripts of SLURM's jobs, run by bash and read by shellcheck."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_stand_in import Cluster

from kimi_prov import cli
from kimi_prov.show.exit_handling import run_guarded

ROOT = Path(__file__).parents[3]
SPECS = ROOT / "inventories" / "specs"


VARIABLES = {
    "reference-002": """
kimi_slurm_root: /valhalla/projects/ab12/kimi
kimi_slurm_partition: gpu
kimi_slurm_cpu_partition: common
kimi_slurm_account: ab12
kimi_slurm_cpu_qos: 2cpu-single-host
kimi_slurm_modules: [nvidia/cuda/12/12.8, anaconda3]
kimi_slurm_idle_minutes: 120
""",
    "quote-2x-8x-h100": """
kimi_slurm_root: /project/kimi
kimi_slurm_gres: "gpu:h100:8"
kimi_slurm_constraint: "h100&ib"
kimi_slurm_time: "2-00:00:00"
kimi_slurm_requeue: true
kimi_slurm_login: me@login.cluster.example.com
kimi_pip_index_url: https://pypi.example.com/simple
kimi_https_proxy: http://me:canary-secret@proxy.example.com:3128
""",
}


def run(*words: str) -> int:
    return int(run_guarded(lambda: cli.cli.main(list(words), standalone_mode=False)))


def render(target: str, output: Path, *more: str, variables: str | None = None) -> int:
    file = output.parent / f"{target}.vars.yml"
    file.write_text(VARIABLES[target] if variables is None else variables)
    sheet = str(SPECS / f"{target}.yml")
    return run("render", "slurm", sheet, "--vars", str(file), "--output", str(output), *more)


@pytest.fixture(scope="module", params=sorted(VARIABLES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("render") / str(request.param)
    assert render(str(request.param), output) == 0
    return output


def test_every_script_is_one_that_bash_takes(folder: Path) -> None:
    scripts = [*(folder / "jobs").iterdir(), folder / "cluster.env", folder / "prepare-login.sh"]
    assert len(scripts) == 8
    for path in scripts:
        subprocess.run(["bash", "-n", str(path)], check=True)
        if path.suffix == ".sbatch":
            assert "\nset -euo pipefail\n" in path.read_text()


def test_shellcheck_finds_nothing(folder: Path) -> None:
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not here")
    scripts = sorted(str(path.relative_to(folder)) for path in (folder / "jobs").glob("*.sbatch"))
    line = ["shellcheck", "--shell=bash", "--external-sources", "--severity=style"]
    done = subprocess.run(
        [*line, *scripts, "prepare-login.sh"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_a_job_that_is_submitted_elsewhere_says_so(folder: Path, tmp_path: Path) -> None:
    line = ["bash", str(folder / "jobs" / "serve.sbatch")]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not the folder that was rendered" in done.stderr


def test_a_job_runs_the_program_and_says_what_it_lacks(tmp_path: Path) -> None:
    output = tmp_path / "reference-002"
    variables = f"kimi_slurm_root: {tmp_path}/root\nkimi_slurm_python: {sys.executable}\n"
    assert render("reference-002", output, variables=variables) == 0
    cluster = Cluster(tmp_path / "slurm", {})
    environment = {**cluster.environment, "SLURM_SUBMIT_DIR": str(output)}
    for job, missing in (
        ("serve", "sbatch jobs/environment.sbatch"),
        ("weights", "sbatch jobs/environment.sbatch"),
        ("accept", "sbatch jobs/serve.sbatch"),
    ):
        line = ["bash", str(output / "jobs" / f"{job}.sbatch")]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert missing in done.stderr
    for words in (["--suite", "full"], ["42", "--suite", "full"]):
        line = ["bash", str(output / "jobs" / "accept.sbatch"), *words]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        job = "of job 42 " if "42" in words else ""
        assert f"no server {job}answers" in done.stderr


def test_a_python_or_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    output = tmp_path / "reference-002"
    variables = f"kimi_slurm_root: {tmp_path}/root\nkimi_slurm_python: python-absent\n"
    assert render("reference-002", output, variables=variables) == 0
    line = ["bash", "jobs/weights.sbatch"]
    done = subprocess.run(line, cwd=output, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "python-absent is not on" in done.stderr
    settings = output / "cluster.env"
    settings.write_text(settings.read_text().replace("KIMI_MODULES=''", "KIMI_MODULES=absent/1"))
    done = subprocess.run(line, cwd=output, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "KIMI_MODULES (absent/1) cannot be loaded" in done.stderr
