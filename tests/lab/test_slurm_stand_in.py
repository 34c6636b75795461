"""Jobs of a rendered folder on a real SLURM, by the commands of a user's own computer.

Real are SLURM, munge, ssh and its tunnel, users without root, and compute nodes that reach no more
than their site. The engine is a stand-in that says that it is one (`stand_in_engine`), installed by
the environment's job from a lock and a wheel of its own; the weights are random bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import threading
import urllib.error
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import closed_form
import cluster
import pytest
import stand_in_engine
import stand_in_sglang
import yaml
from cluster_jobs import Jobs, chat, copy
from machines import KIMI_PROV, kimi_prov
from waiting import until
from weights_server import Server

from kimi_prov.on_host.weights import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster import Cluster

pytestmark = [pytest.mark.lab, pytest.mark.slow]

PROJECTS = "/shared/projects"
ROOT = f"{PROJECTS}/site"
# A root of its own, so small that nothing can be installed there.
SMALL = f"{PROJECTS}/small"
KT = f"{PROJECTS}/kt"
WHEELS = f"{PROJECTS}/wheels"
HELD_BYTES_PER_S = 16384
VARIABLES = {
    "kimi_slurm_partition": "main",
    "kimi_slurm_modules": [cluster.MODULE],
    "kimi_slurm_time": "00:20:00",
    "kimi_slurm_signal_s": 60,
    "kimi_slurm_requeue": True,
}
# Exit status after Ctrl-C.
INTERRUPTED = 130
BOTH = ("--nodes=2", "--exclusive", "--partition=urgent")


@dataclass
class Site:
    """What the tests share: rendered folders by name, and how a user's computer logs in."""

    slurm: Cluster
    folders: Path
    mirror: Server
    programs: Path

    def command(self, verb: str, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """One of `submit`, `jobs`, `cancel` for a folder, through the login node."""
        folder = self.folders / name
        return kimi_prov(verb, folder, *words, *self.login, env=self.environment)

    @property
    def login(self) -> tuple[str, str]:
        """How the commands are told of the login node."""
        return ("--login", self.slurm.login()[-1])

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which ssh finds the login node."""
        return {"PATH": f"{self.programs}:{os.environ['PATH']}"}

    def told(self, verb: str, name: str, *words: str) -> dict[str, Any]:
        """The document of a command that has to succeed."""
        done = self.command(verb, name, *words, "--format", "json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        closed_form.validate(document, verb)
        return dict(document)

    def submit(self, name: str, *words: str) -> dict[str, dict[str, Any]]:
        """Submit jobs of a folder; what was done with each."""
        return {row["name"]: row for row in self.told("submit", name, *words)["jobs"]}

    def there(self, name: str, root: str = ROOT) -> Jobs:
        """The folder where `submit` brought it."""
        return Jobs(self.slurm, f"{root}/renders/{name}", root)

    def shown(self, name: str, number: int) -> dict[str, Any]:
        """What `jobs` tells of one of them."""
        rows = self.told("jobs", name)["jobs"]
        return dict(next(row for row in rows if row["id"] == str(number)))


@pytest.fixture(scope="module")
def site(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Folders for one node and for two, and the site that they install and fetch from."""
    base = tmp_path_factory.mktemp("site")
    gateway = slurm.controller.address.rpartition(".")[0] + ".1"
    mirror = Server(_weights(), host=gateway)
    facts = base / "facts.json"
    facts.write_text(_probed_in_a_job(slurm, base))
    common = {**VARIABLES, "kimi_weights_source": mirror.url}
    for name, root, hosts in (("one", ROOT, 1), ("two", ROOT, 2), ("small", SMALL, 1)):
        variables = {**common, "kimi_slurm_root": root, "kimi_hosts_per_model": hosts}
        _render(base, name, facts, variables)
    # Of a root of its own, for its environment has another wheel.
    _render(base, "kt", facts, {**common, "kimi_slurm_root": KT})
    _put_sglang(base / "kt")
    programs = base / "bin"
    programs.mkdir()
    # What a user has in ~/.ssh/config.
    options = " ".join(slurm.login()[1:-1])
    (programs / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh {options} "$@"\n')
    (programs / "ssh").chmod(0o755)
    try:
        with slurm.cut_off(*cluster.NODES):
            yield Site(slurm, base, mirror, programs)
            slurm.clear()
    finally:
        mirror.stop()


def _weights() -> dict[str, bytes]:
    files = {"config.json": b"{}\n", "model.safetensors": os.urandom(1 << 20)}
    rows = [
        {"path": path, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        for path, body in files.items()
    ]
    return {**files, manifest.NAME: json.dumps({"files": rows}).encode()}


def _probed_in_a_job(slurm: Cluster, base: Path) -> str:
    """The facts of a compute node, as a job of its user sees it."""
    folder = base / "probe"
    folder.mkdir()
    assert kimi_prov("probe", "--bundle", folder / "probe.pyz").returncode == 0
    copy(slurm, folder, f"{PROJECTS}/probe")
    number = slurm.submit(
        f"python3 {PROJECTS}/probe/probe.pyz --output {PROJECTS}/probe/facts.json",
        f"--output={PROJECTS}/probe/%j.out",
    )
    assert slurm.wait_job(number, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    return slurm.folder("projects", "probe", "facts.json").read_text()


def _render(base: Path, name: str, facts: Path, variables: dict[str, Any]) -> None:
    """Render, and put the stand-in in the engine's place as a user changes files."""
    file = base / f"{name}.yml"
    file.write_text(yaml.safe_dump(variables))
    words = ("--vars", file, "--model", "kimi-k2-lab", "--output", base / name)
    done = kimi_prov("render", "slurm", facts, *words)
    assert done.returncode == 0, done.stderr
    plan = json.loads((base / name / "plan.json").read_text())
    version = plan["engine"]["version"]
    wheel, content = stand_in_engine.wheel(version)
    (base / "wheels").mkdir(exist_ok=True)
    (base / "wheels" / wheel).write_bytes(content)
    (base / name / "locks" / plan["engine"]["lock"]).write_text(stand_in_engine.lock(version))
    settings = base / name / "cluster.env"
    text = settings.read_text().replace("KIMI_STEP_S=5", "KIMI_STEP_S=0.5")
    settings.write_text(f"{text}export PIP_NO_INDEX=1 PIP_FIND_LINKS={WHEELS}\n")


def _put_sglang(folder: Path) -> None:
    """Put sglang's stand-in where KTransformers' server would be: no lab host has GPUs."""
    plan = json.loads((folder / "plan.json").read_text())
    version = plan["engine"]["version"]
    wheel, content = stand_in_engine.wheel(version, stand_in_sglang.FILES)
    wheels = folder.parent / "wheels-kt"
    wheels.mkdir()
    (wheels / wheel).write_bytes(content)
    lock = stand_in_engine.lock(version, stand_in_sglang.FILES)
    (folder / "locks" / plan["engine"]["lock"]).write_text(lock)
    plan["engine"]["name"] = "ktransformers"
    (folder / "plan.json").write_text(json.dumps(plan))
    settings = folder / "cluster.env"
    text = settings.read_text().replace(f"PIP_FIND_LINKS={WHEELS}", f"PIP_FIND_LINKS={WHEELS}-kt")
    settings.write_text(text)
    script = folder / "jobs" / "serve.sbatch"
    text = script.read_text().replace("vllm.entrypoints.openai.api_server", stand_in_sglang.MODULE)
    script.write_text(
        text.replace("engine=(\n", "engine=(\n  --kt-cpuinfer 4096 --kt-numa-nodes 0\n")
    )


def test_a_job_serves_ktransformers_behind_its_own_haproxy(site: Site) -> None:
    """Before the tests that need both nodes; its job ends with it."""
    copy(site.slurm, site.folders / "wheels-kt", f"{WHEELS}-kt")
    made = site.submit("kt")
    jobs = site.there("kt", KT)
    for name in ("environment", "weights"):
        jobs.wait_done(int(made[name]["id"]))
    # What was fetched for this folder is not counted for the next ones.
    site.mirror.behaviour.served.clear()
    number = int(made["serve"]["id"])
    found = jobs.wait_ready(number)
    closed_form.validate(found, "endpoint")
    assert stand_in_sglang.SAYS in site.slurm.output(number)
    assert "kt-kernel's threads are" in site.slurm.output(number)
    assert jobs.chat(found)["choices"][0]["message"]["content"] == "hello"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        jobs.ask(found, "sk-kimi-another")
    node = found["url"].split("//")[1].partition(":")[0]
    assert "haproxy" in site.slurm.run(f"srun --overlap --jobid={number} ps -eo comm", user="alice")
    assert site.command("cancel", "kt").returncode == 0
    site.slurm.wait_job(number, "CANCELLED", "COMPLETED")
    assert node in cluster.NODES


@pytest.fixture(scope="module")
def ready(site: Site) -> dict[str, Any]:
    """Everything from `submit` to a server on one node, by a user whose home is full.

    The weights' job of another folder is held in its fetch meanwhile.
    """
    slurm, behaviour = site.slurm, site.mirror.behaviour
    copy(slurm, site.folders / "wheels", WHEELS)
    behaviour.rate = HELD_BYTES_PER_S
    with slurm.full_home():
        first = int(site.submit("two", "weights")["weights"]["id"])
        assert until(lambda: behaviour.served.get("model.safetensors"))
        made = site.submit("one")
        numbers = {name: int(row["id"]) for name, row in made.items()}
        waited = slurm.wait_output(numbers["weights"], "holds the lock; waiting")
        pending = slurm.state(numbers["serve"])
        behaviour.rate = None
        found = site.there("one").wait_ready(numbers["serve"])
    return {
        "made": made,
        "numbers": numbers,
        "first": first,
        "waited": waited,
        "pending": pending,
        "endpoint": found,
    }


def test_submit_chains_what_the_server_needs(site: Site, ready: dict[str, Any]) -> None:
    made, numbers = ready["made"], ready["numbers"]
    assert [row["outcome"] for row in made.values()] == ["submitted"] * 3
    assert made["serve"]["after"] == [str(numbers["environment"]), str(numbers["weights"])]
    assert ready["pending"] == "PENDING"
    assert site.slurm.state(numbers["environment"]) == "COMPLETED"
    assert stand_in_engine.SAYS in site.slurm.output(numbers["serve"])
    again = site.submit("one")
    outcomes = [row["outcome"] for row in again.values()]
    assert outcomes == ["complete", "complete", "queued"]
    assert again["serve"]["id"] == str(numbers["serve"])


def test_of_two_jobs_on_one_weights_directory_one_fetches(
    site: Site, ready: dict[str, Any]
) -> None:
    assert f"job {ready['first']} on c" in ready["waited"]
    site.there("two").wait_done(ready["first"])
    assert site.slurm.state(ready["numbers"]["weights"]) == "COMPLETED"
    size = len(site.mirror.behaviour.files["model.safetensors"])
    assert site.mirror.behaviour.served["model.safetensors"] == size


def test_a_chat_goes_through_the_tunnel_and_who_has_no_key_is_kept_out(
    site: Site, ready: dict[str, Any]
) -> None:
    found, jobs = ready["endpoint"], site.there("one")
    closed_form.validate(found, "endpoint")
    assert jobs.chat(found)["choices"][0]["message"]["content"] == "hello"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        jobs.ask(found, "sk-kimi-another")
    kept = site.slurm.tried(f"cat {found['key_file']} {ROOT}/endpoints/*.json", user="bob")
    assert kept.stdout == ""
    row = site.shown("one", ready["numbers"]["serve"])
    assert (row["state"], row["endpoint"]["state"]) == ("RUNNING", "ready")
    assert row["endpoint"]["url"] == found["url"]


def test_cancel_ends_a_server_gently_and_touches_no_other_folders_jobs(
    site: Site, ready: dict[str, Any]
) -> None:
    number, jobs = ready["numbers"]["serve"], site.there("one")
    refused = site.command("cancel", "two", str(number))
    assert refused.returncode == 2
    assert f"'{number}'" in refused.stderr
    answers: list[dict[str, Any]] = []
    asked = threading.Thread(
        target=lambda: answers.append(jobs.chat(ready["endpoint"], user="patient"))
    )
    asked.start()
    assert until(lambda: _works(site, number, ready["endpoint"]))
    (row,) = site.told("cancel", "one")["jobs"]
    assert (row["id"], row["outcome"]) == (str(number), "ending")
    asked.join(60)
    assert answers
    site.slurm.wait_job(number, "COMPLETED", "CANCELLED")
    ended = jobs.endpoint(number)
    assert (ended["state"], ended["successor"]) == ("ended", None)
    assert not site.slurm.folder("projects", "site", "run", str(number)).exists()


def _works(site: Site, number: int, found: dict[str, Any]) -> bool:
    """Whether a request runs, by the job's own key."""
    key = site.slurm.folder("projects", "site", "run", str(number), "job.key").read_text().strip()
    url = found["url"].replace("/v1", "/metrics")
    line = f"curl -sk -H 'Authorization: Bearer {key}' {url}"
    return "num_requests_running 1" in site.slurm.run(line)


def test_two_nodes_are_one_server_and_come_back_after_a_preemption(
    site: Site, ready: dict[str, Any]
) -> None:
    made = site.submit("two")
    assert made["weights"]["outcome"] == "complete"
    jobs, number = site.there("two"), int(made["serve"]["id"])
    found = jobs.wait_ready(number)
    assert found["nodes"] == list(cluster.NODES)
    assert "rank 1 found c1" in site.slurm.output(number)
    assert jobs.chat(found)["usage"]["completion_tokens"] == 1
    urgent = site.slurm.submit("hostname", *BOTH, user="bob")
    site.slurm.wait_job(urgent, "COMPLETED")
    again = jobs.wait_ready(number, times=2)
    assert site.slurm.job(number)["Restarts"] == "1"
    assert jobs.chat(again)["usage"]["completion_tokens"] == 1
    site.told("cancel", "two", "serve")
    site.slurm.wait_job(number, "COMPLETED", "CANCELLED")
    assert jobs.endpoint(number)["state"] == "ended"


def test_before_the_walltime_ends_answers_end_and_connect_goes_on_to_the_successor(
    site: Site, ready: dict[str, Any]
) -> None:
    jobs = site.there("one")
    number = jobs.submit("serve", "--time=2")
    with _connected(site, "one") as document:
        assert document["job"] == str(number)
        # Until SLURM's signal: the answer ends after it.
        assert _asked(document, user="patient")["usage"]["completion_tokens"] == 1
        text = jobs.wait_done(number)
        assert "the walltime ends: job" in text
        successor = int(jobs.endpoint(number)["successor"])
        jobs.wait_ready(successor)
        assert until(lambda: _follows(document, jobs, successor))
        assert _asked(document)["usage"]["completion_tokens"] == 1
    assert site.shown("one", number)["endpoint"]["successor"] == str(successor)
    site.told("cancel", "one", "--now")
    site.slurm.wait_job(successor, "CANCELLED")


def _follows(document: dict[str, Any], jobs: Jobs, number: int) -> bool:
    """Whether a client finds another job's certificate, and who has it answers."""
    if Path(document["certificate_file"]).read_text() != jobs.endpoint(number)["certificate"]:
        return False
    try:
        return bool(_asked(document))
    except OSError:
        return False


def _asked(document: dict[str, Any], **more: object) -> dict[str, Any]:
    """A chat as a client has it from the document of `connect`, and nothing else."""
    assert stat.S_IMODE(Path(document["key_file"]).stat().st_mode) == 0o600
    certificate = Path(document["certificate_file"]).read_text()
    key = Path(document["key_file"]).read_text().strip()
    return chat(document["base_url"], document["model"], certificate, key, **more)


@contextmanager
def _connected(site: Site, name: str) -> Iterator[dict[str, Any]]:
    """`connect` while it runs, from its document on; Ctrl-C ends it."""
    told = site.folders / f"connect-{name}.json"
    # A shell's background jobs, and what they start, ignore Ctrl-C.
    line = ["env", "--default-signal=INT", KIMI_PROV, "connect", str(site.folders / name)]
    line += [*site.login, "--every", "1", "--format", "json", "--output", str(told)]
    with subprocess.Popen(line, env={**os.environ, **site.environment}) as process:
        try:
            assert until(lambda: told.exists() or process.poll() is not None)
            assert process.poll() is None
            document = json.loads(told.read_text())
            closed_form.validate(document, "connect")
            yield document
        finally:
            process.send_signal(signal.SIGINT)
            try:
                assert process.wait(30) == INTERRUPTED
            finally:
                process.kill()


def test_a_server_that_nobody_asks_frees_its_node(site: Site, ready: dict[str, Any]) -> None:
    jobs = site.there("one")
    site.slurm.clear()
    jobs.set("KIMI_IDLE_MINUTES", "0.1")
    number = int(site.submit("one")["serve"]["id"])
    assert "no request for 0.1 minutes" in jobs.wait_done(number)
    ended = jobs.endpoint(number)
    assert (ended["state"], ended["successor"]) == ("ended", None)


def test_a_full_file_system_is_named_and_nothing_half_written_stays(
    site: Site, ready: dict[str, Any]
) -> None:
    slurm, node = site.slurm, site.slurm.node("c1")
    there = f"{PROJECTS}/small-jobs"
    copy(slurm, site.folders / "small", there)
    slurm.run(f"mkdir -m 0755 {SMALL}")
    owner = cluster.USERS["alice"]
    node.ssh(f"mount -t tmpfs -o size=1m,uid={owner},mode=0755 small {SMALL}")
    jobs = Jobs(slurm, there, SMALL)
    try:
        for name in ("environment", "weights"):
            number = jobs.submit(name, "--nodelist=c1")
            assert slurm.wait_job(number, "COMPLETED", "FAILED")["JobState"] == "FAILED", name
            last = slurm.output(number).splitlines()[-1]
            assert SMALL in last, last
            assert "No space left on device; free space" in last or "no space for" in last, last
            assert node.ssh(f"find {SMALL} -name .complete -o -name '*.lock'") == ""
        node.ssh(f"mount -o remount,size=300m {SMALL}")
        for name in ("environment", "weights"):
            jobs.wait_done(jobs.submit(name, "--nodelist=c1"))
    finally:
        node.ssh(f"umount -l {SMALL}")
