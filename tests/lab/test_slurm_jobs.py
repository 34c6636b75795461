"""The rendered jobs on a real SLURM: from the login node's wheels to a chat over two nodes.

vLLM's CPU build and the tiny model; a user without root, compute nodes without network. The tuner
alone is a stand-in, for vLLM's own needs GPUs: its job, and the Ray that it starts, are real.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import closed_form
import cluster
import pytest
import yaml
from cluster_jobs import Jobs, copy
from machines import CHECKOUT, kimi_prov
from test_tuner import TUNER

from kimi_prov.catalog.loader import load_catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster import Cluster

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ROOT = "/shared/projects/kimi"
FOLDER = "/shared/projects/jobs"
# Installing the engine on a machine with much else to do.
INSTALLS_S = 1500.0
VARIABLES = {
    "kimi_slurm_root": ROOT,
    "kimi_slurm_partition": "main",
    "kimi_slurm_modules": [cluster.MODULE],
    "kimi_slurm_time": "00:30:00",
    "kimi_slurm_signal_s": 120,
    "kimi_slurm_requeue": True,
    "kimi_hosts_per_model": 2,
}
# A core of each node is left to the jobs that ask the server.
ONE_CORE = ("--cpus-per-task=1", "--mem=4G")
# Ten short chats in the place of 1,000 long ones.
SHORT = {"num-prompts": 10, "request-rate": 5, "random-input-len": 32, "random-output-len": 8}


@pytest.fixture(scope="module")
def jobs(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """The folder rendered for a compute node, and wheels and weights fetched on the login node."""
    folder = tmp_path_factory.mktemp("rendered")
    variables, output = folder / "variables.yml", folder / "jobs"
    variables.write_text(yaml.safe_dump(VARIABLES))
    words = ("--host", cluster.NODES[0], "--vars", variables, "--model", "kimi-k2-lab")
    done = kimi_prov("render", "slurm", "--inventory", slurm.inventory, *words, "--output", output)
    assert done.returncode == 0, done.stderr
    _shorten(output / "jobs" / "bench.sbatch")
    _give_tuner(output, folder, variables)
    copy(slurm, output, FOLDER)
    # A folder of wheels that this computer has instead of an index is the user's to bring.
    if links := slurm.site.get("kimi_pip_find_links"):
        copy(slurm, Path(links), f"{ROOT}/wheels")
    found = Jobs(slurm, FOLDER, ROOT)
    slurm.run(f"cd {FOLDER} && ./prepare-login.sh", timeout=INSTALLS_S)
    found.set("KIMI_OFFLINE", "1")
    with slurm.cut_off(*cluster.NODES):
        yield found
        slurm.clear()


def _shorten(bench: Path) -> None:
    text = bench.read_text()
    for flag, value in SHORT.items():
        before, _, rest = text.partition(f"--{flag} ")
        text = f"{before}--{flag} {value}\n{rest.partition(chr(10))[2]}"
    bench.write_text(text)


def _give_tuner(output: Path, folder: Path, variables: Path) -> None:
    """Give the folder the tuner's job of a GPU server, with a tuner that measures nothing."""
    sheet = CHECKOUT / "inventories" / "specs" / "quote-8x-h200.yml"
    gpus = folder / "gpus"
    words = ("--vars", variables, "--hosts-per-model", "1", "--model", "kimi-k2-instruct")
    done = kimi_prov("render", "slurm", sheet, *words, "--output", gpus)
    assert done.returncode == 0, done.stderr
    (output / "jobs" / "tune.sbatch").write_bytes((gpus / "jobs" / "tune.sbatch").read_bytes())
    (output / "locks" / "ray.txt").write_text(load_catalogue().lock("ray.txt"))
    plan = json.loads((output / "plan.json").read_text())
    tuning = json.loads((gpus / "plan.json").read_text())["moe_tuning"]
    assert tuning["read"]
    plan["moe_tuning"] = tuning | {"sha256": hashlib.sha256(TUNER.encode()).hexdigest()}
    (output / "plan.json").write_text(json.dumps(plan))


def test_two_jobs_install_the_engine_once(jobs: Jobs, slurm: Cluster) -> None:
    numbers = [jobs.submit("environment", *ONE_CORE) for _ in range(2)]
    said = [jobs.wait_done(number, INSTALLS_S) for number in numbers]
    assert sum(": installed" in text for text in said) == 1
    assert sum("is complete already" in text for text in said) == 1


def test_weights_are_verified_by_one_job_and_found_by_the_next(jobs: Jobs) -> None:
    numbers = [jobs.submit("weights", "--cpus-per-task=1", "--mem=2G") for _ in range(2)]
    assert all("verified" in jobs.wait_done(number) for number in numbers)


def test_the_tuners_job_brings_ray_and_leaves_tables_where_the_server_reads_them(
    jobs: Jobs, slurm: Cluster
) -> None:
    job = ("tune", "--gres=gpu:1", *ONE_CORE)
    refused = jobs.submit(*job)
    slurm.wait_job(refused, "COMPLETED", "FAILED", hangs_s=INSTALLS_S)
    tuning = json.loads(slurm.folder("projects", "jobs", "plan.json").read_text())["moe_tuning"]
    script, tables = (tuning[key].replace("/srv/kimi", ROOT, 1) for key in ("script", "dir"))
    assert f"put the file at {script} from the login node" in slurm.output(refused)
    slurm.run(f"mkdir -p {Path(script).parent}")
    slurm.folder(*Path(script).parts[2:]).write_text(TUNER)
    number = jobs.submit(*job)
    assert "tables are in" in jobs.wait_done(number, INSTALLS_S)
    seen = json.loads(slurm.run(f"cat {tables}/*.json"))
    assert seen["user"] == "alice"
    assert f"ray=={seen['ray']}" in load_catalogue().lock("ray.txt")


def test_a_chat_reaches_two_nodes_is_measured_and_comes_back_after_a_preemption(
    jobs: Jobs, slurm: Cluster
) -> None:
    number = jobs.submit("serve", *ONE_CORE)
    found = jobs.wait_ready(number)
    closed_form.validate(found, "endpoint")
    assert found["nodes"] == list(cluster.NODES)
    assert jobs.chat(found)["usage"]["completion_tokens"] > 0
    refused = slurm.tried(f"cat {found['key_file']} {ROOT}/endpoints/{number}.json", user="bob")
    assert refused.stdout == ""
    accepted = jobs.wait_done(jobs.submit("accept"))
    assert "all passed" in accepted
    measured = jobs.wait_done(jobs.submit("bench", *ONE_CORE))
    assert f"results are in {ROOT}/results" in measured
    (result,) = [json.loads(p.read_text()) for p in slurm.folder("projects/kimi/results").iterdir()]
    assert (result["completed"], result["total_output_tokens"]) == (10, 80)
    urgent = slurm.submit("hostname", "--nodes=2", "--exclusive", "--partition=urgent", user="bob")
    slurm.wait_job(urgent, "COMPLETED", hangs_s=240)
    again = jobs.wait_ready(number, times=2)
    assert slurm.job(number)["Restarts"] == "1"
    assert jobs.chat(again)["usage"]["completion_tokens"] > 0
    slurm.clear()


def test_a_server_that_nobody_asks_frees_its_nodes(jobs: Jobs, slurm: Cluster) -> None:
    jobs.set("KIMI_IDLE_MINUTES", "0.5")
    number = jobs.submit("serve", *ONE_CORE)
    assert jobs.chat(jobs.wait_ready(number))["usage"]["completion_tokens"] > 0
    assert "no request for 0.5 minutes" in jobs.wait_done(number)
    found = jobs.endpoint(number)
    assert (found["state"], found["successor"]) == ("ended", None)
    slurm.wait_nodes("idle")
