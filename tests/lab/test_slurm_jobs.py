"""The rendered jobs on a real SLURM: from the login node's wheels to a chat over two nodes.

vLLM's CPU build and the tiny model; a user without root, compute nodes without network.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cluster
import jsonschema
import pytest
import yaml
from machines import kimi_prov
from waiting import until

from kimi_prov import schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster import Cluster

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ROOT = "/shared/projects/kimi"
FOLDER = "/shared/projects/jobs"
# Installing the engine and loading it on a machine with much else to do.
INSTALLS_S = 1500.0
LOADS_S = 900.0
VARIABLES = {
    "kimi_slurm_root": ROOT,
    "kimi_slurm_partition": "main",
    "kimi_slurm_modules": [cluster.MODULE],
    "kimi_slurm_time": "00:30:00",
    "kimi_slurm_signal_s": 120,
    "kimi_slurm_requeue": True,
    "kimi_hosts_per_model": 2,
}


class Jobs:
    """The rendered folder on the shared file system, as its owner uses it."""

    def __init__(self, slurm: Cluster) -> None:
        self.slurm = slurm

    def submit(self, name: str, *options: str) -> int:
        line = " ".join(["sbatch", "--parsable", *options, f"jobs/{name}.sbatch"])
        return int(self.slurm.run(f"cd {FOLDER} && {line}"))

    def endpoint(self, number: int) -> dict[str, Any]:
        return dict(json.loads(self.slurm.run(f"cat {ROOT}/endpoints/{number}.json")))

    def wait_ready(self, number: int, times: int = 1) -> dict[str, Any]:
        """Wait until the server has said so many times that it answers."""

        def over() -> bool:
            said = self.slurm.output(number).count("ready after") >= times
            return said or self.slurm.state(number) not in ("PENDING", "RUNNING")

        assert until(over, LOADS_S), self.slurm.output(number)[-3000:]
        assert self.slurm.state(number) == "RUNNING", self.slurm.output(number)[-3000:]
        return self.endpoint(number)

    def chat(self, endpoint: dict[str, Any]) -> dict[str, Any]:
        """A chat through the login node, the endpoint's certificate alone trusted."""
        key = self.slurm.run(f"cat {endpoint['key_file']}")
        port = int(endpoint["url"].rpartition(":")[2].partition("/")[0])
        body = {
            "model": endpoint["model"],
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 8,
        }
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        trusted = ssl.create_default_context(cadata=endpoint["certificate"])
        with self.slurm.tunnel(endpoint["node"], port) as local:
            request = urllib.request.Request(
                f"https://localhost:{local}/v1/chat/completions",
                json.dumps(body).encode(),
                headers,
            )
            with urllib.request.urlopen(  # noqa: S310 - of this lab
                request, timeout=120, context=trusted
            ) as answer:
                return dict(json.load(answer))


@pytest.fixture(scope="module")
def jobs(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """The folder rendered for a compute node, and wheels and weights fetched on the login node."""
    folder = tmp_path_factory.mktemp("rendered")
    variables, output = folder / "variables.yml", folder / "jobs"
    variables.write_text(yaml.safe_dump(VARIABLES))
    words = ("--host", cluster.NODES[0], "--vars", variables, "--model", "kimi-k2-lab")
    done = kimi_prov("render", "slurm", "--inventory", slurm.inventory, *words, "--output", output)
    assert done.returncode == 0, done.stderr
    _copy(slurm, output, FOLDER)
    # A folder of wheels that this computer has instead of an index is the user's to bring.
    if links := slurm.site.get("kimi_pip_find_links"):
        _copy(slurm, Path(links), f"{ROOT}/wheels")
    slurm.run(f"cd {FOLDER} && ./prepare-login.sh", timeout=INSTALLS_S)
    slurm.run(f"sed -i 's/^export KIMI_OFFLINE=.*/export KIMI_OFFLINE=1/' {FOLDER}/cluster.env")
    with slurm.cut_off(*cluster.NODES):
        yield Jobs(slurm)
        slurm.clear()


def _copy(slurm: Cluster, folder: Path, there: str) -> None:
    line = ["tar", "--owner=0", "--group=0", "-C", str(folder), "-cf", "-", "."]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as packed:
        unpack = f"mkdir -p {there} && tar -xf - -C {there}"
        subprocess.run([*slurm.login(), unpack], stdin=packed.stdout, check=True)


def test_two_jobs_install_the_engine_once(jobs: Jobs, slurm: Cluster) -> None:
    numbers = [jobs.submit("environment", "--cpus-per-task=1", "--mem=4G") for _ in range(2)]
    for number in numbers:
        slurm.wait_job(number, "COMPLETED", "FAILED", hangs_s=INSTALLS_S)
    said = [slurm.output(number) for number in numbers]
    assert [slurm.state(number) for number in numbers] == ["COMPLETED"] * 2, said
    assert sum(": installed" in text for text in said) == 1
    assert sum("is complete already" in text for text in said) == 1


def test_weights_are_verified_by_one_job_and_found_by_the_next(jobs: Jobs, slurm: Cluster) -> None:
    numbers = [jobs.submit("weights", "--cpus-per-task=1", "--mem=2G") for _ in range(2)]
    for number in numbers:
        slurm.wait_job(number, "COMPLETED", "FAILED")
        assert slurm.state(number) == "COMPLETED", slurm.output(number)
        assert "verified" in slurm.output(number)


def test_a_chat_reaches_two_nodes_also_after_a_preemption(jobs: Jobs, slurm: Cluster) -> None:
    number = jobs.submit("serve")
    found = jobs.wait_ready(number)
    jsonschema.validate(found, schemas.load("endpoint"))
    assert found["nodes"] == list(cluster.NODES)
    assert jobs.chat(found)["usage"]["completion_tokens"] > 0
    refused = slurm.tried(f"cat {found['key_file']} {ROOT}/endpoints/{number}.json", user="bob")
    assert refused.stdout == ""
    urgent = slurm.submit("hostname", "--nodes=2", "--exclusive", "--partition=urgent", user="bob")
    slurm.wait_job(urgent, "COMPLETED", hangs_s=240)
    again = jobs.wait_ready(number, times=2)
    assert slurm.job(number)["Restarts"] == "1"
    assert jobs.chat(again)["usage"]["completion_tokens"] > 0
