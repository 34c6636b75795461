"""The Python of the jobs where a site has only a module of conda, by its own scripts in bash."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_stand_in import Cluster

from kimi_prov import cli
from kimi_prov.show.exit_handling import run_guarded

SPEC = Path(__file__).parents[3] / "inventories" / "specs" / "reference-002.yml"
# What `module` does here: it writes down its words, and `purge` takes SLURM away where it is told.
MODULE = """() {
  echo "$*" >> "$STAND_IN/modules"
  if [ "$1" = purge ] && [ -n "${PURGE_TAKES:-}" ]; then rm "$PURGE_TAKES"; fi
  if [ "$1" = load ]; then PATH=$STAND_IN/conda:$PATH; fi
}"""
# Makes what conda makes as far as the jobs look: a prefix with a Python.
CONDA = f"""#!{sys.executable} -I
import json, os, pathlib, sys, venv
there = pathlib.Path(os.environ["STAND_IN"])
told = {{"argv": sys.argv[1:], "packages": os.environ.get("CONDA_PKGS_DIRS")}}
with open(there / "conda-calls", "a") as stream:
    stream.write(json.dumps(told) + "\\n")
prefix = pathlib.Path(sys.argv[sys.argv.index("--prefix") + 1])
venv.create(prefix, symlinks=True)
sys.exit(3 if (there / "broken").exists() else 0)
"""


@pytest.fixture
def site(tmp_path: Path) -> Any:
    folder, slurm = tmp_path / "jobs-folder", Cluster(tmp_path / "slurm", {})
    variables = tmp_path / "vars.yml"
    variables.write_text(
        f"kimi_slurm_root: {tmp_path}/root\nkimi_slurm_modules: [cuda/12, anaconda3]\n"
    )
    words = ["render", "slurm", str(SPEC), "--vars", str(variables), "--output", str(folder)]
    assert run_guarded(lambda: cli.cli.main(words, standalone_mode=False)) == 0
    there = Path(slurm.environment["STAND_IN"])
    (there / "conda").mkdir()
    # The module's own Python is another than the packages are pinned for.
    (there / "conda" / "python3").symlink_to(sys.executable)
    (there / "conda" / "conda").write_text(CONDA)
    (there / "conda" / "conda").chmod(0o755)
    plan = json.loads((folder / "plan.json").read_text())
    plan["engine"]["python_version"] = "{}.{}".format(*sys.version_info[:2])
    # Nothing is to be installed here: what is tried is the Python before it.
    plan["engine"]["locks"], plan["installation"]["hub_client"] = ["none.txt"], None
    plan["installation"]["cuda_home"] = plan["installation"]["metadata"] = None
    (folder / "locks" / "none.txt").touch()
    (folder / "plan.json").write_text(json.dumps(plan))
    environment = {**slurm.environment, "BASH_FUNC_module%%": MODULE, "SLURM_SUBMIT_DIR": "."}

    def run(job: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", f"jobs/{job}.sbatch"],
            cwd=folder,
            env={**environment, **more},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def calls() -> list[dict[str, Any]]:
        file = there / "conda-calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    run.folder, run.there, run.calls, run.root = folder, there, calls, tmp_path / "root"  # type: ignore[attr-defined]
    run.programs = slurm.programs  # type: ignore[attr-defined]
    return run


def find_prefix(site: Any) -> Path:
    return next(path for path in site.root.glob("python3.*") if path.is_dir())


def test_a_job_makes_the_python_once_and_its_environment_is_of_it(site: Any) -> None:
    done = site("environment")
    prefix = find_prefix(site)
    call = site.calls()[0]
    assert call["argv"][:5] == ["create", "--yes", "--quiet", "--prefix", str(prefix)]
    assert call["argv"][5:8] == ["--override-channels", "--channel", "conda-forge"]
    assert call["packages"].startswith(f"{site.root}/")
    assert done.returncode == 0, done.stderr
    made = next(site.root.glob("engines/*/pyvenv.cfg")).read_text()
    assert f"command = {prefix}/bin/python3 " in made
    again = site("environment")
    assert again.returncode == 0, again.stderr
    assert len(site.calls()) == 1


def test_other_jobs_say_what_is_missing_by_the_modules_own_python(site: Any) -> None:
    done = site("serve")
    assert done.returncode == 2
    assert "sbatch jobs/environment.sbatch" in done.stderr
    assert site.calls() == []


def test_a_python_that_was_not_finished_is_made_again(site: Any) -> None:
    (site.there / "broken").touch()
    done = site("environment")
    assert done.returncode != 0
    assert "conda create ended with status 3" in done.stderr
    (site.there / "broken").unlink()
    assert site("environment").returncode == 0
    assert len(site.calls()) == 2


def test_a_folder_that_is_no_python_is_left_alone(site: Any) -> None:
    settings = (site.folder / "cluster.env").read_text()
    found = re.search(r'^export KIMI_PYTHON="\$KIMI_ROOT/(.+)"$', settings, re.MULTILINE)
    assert found
    prefix = site.root / found[1]
    prefix.mkdir(parents=True)
    (prefix / "theirs").touch()
    done = site("environment")
    assert done.returncode == 2
    assert f"{prefix} is there, and has no Python" in done.stderr
    assert (prefix / "theirs").exists()


def test_modules_of_the_shell_that_submits_are_purged_first(site: Any) -> None:
    site("serve")
    told = (site.there / "modules").read_text().splitlines()
    assert told == ["purge", "load cuda/12 anaconda3"]
    (site.there / "modules").unlink()
    settings = site.folder / "cluster.env"
    settings.write_text(settings.read_text().replace("KIMI_PURGE=1", "KIMI_PURGE=0"))
    site("serve")
    assert (site.there / "modules").read_text() == "load cuda/12 anaconda3\n"


def test_a_purge_that_takes_slurm_away_is_named(site: Any) -> None:
    done = site("serve", PURGE_TAKES=str(site.programs / "srun"))
    assert done.returncode == 2
    assert "name SLURM's module in KIMI_MODULES, or set KIMI_PURGE=0" in done.stderr


def test_no_job_tunes_where_nothing_is_tuned_and_submit_says_why(site: Any) -> None:
    assert not (site.folder / "jobs" / "tune.sbatch").exists()
    line = [sys.executable, "-I", "kimi-cluster.pyz", "cluster", "submit", "tune"]
    environment = {
        "KIMI_ROOT": str(site.root),
        "KIMI_DIR": str(site.folder),
        "PATH": str(site.programs),
    }
    (site.programs / "squeue").write_text("#!/bin/sh\n")
    done = subprocess.run(
        line, cwd=site.folder, env=environment, capture_output=True, text=True, check=False
    )
    assert "nothing is to be tuned: " in done.stdout
