"""Commands on a rendered folder as their user calls them: a real kubectl, a stand-in of the API.

Nothing schedules or runs anything here. Forwarded ports are a stub's: the stand-in has none.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import chat_stand_in
import closed_form
import command_line
import kubectl as real_kubectl
import kubernetes_api
import model_stand_in
import pytest
import scripted_model
import yaml
from chat_stand_in import Engine
from kubernetes_cluster import KEY, Cluster
from made_certificates import signed
from on_terminal import CTRL_C, CTRL_D, OnTerminal
from ports import free_port
from waiting import HANGS_S, until

from kimi_prov.on_host.endpoint import tls

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[4]
MODEL = "kimi-k2.5"
HELLO = "Hello from the stand-in."
IMAGE = "registry.example.com/kimi:1"


def render(target: Path, out: Path, **variables: Any) -> None:
    file = out.parent / f"{out.name}.yml"
    file.write_text(yaml.safe_dump({"kimi_kubernetes_image": IMAGE, **variables}))
    words = ("render", "kubernetes", target, "--vars", file, "--output", out)
    done = command_line.run(*words)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_kubectl.unpack(tmp_path_factory.mktemp("kubectl"))


@pytest.fixture(scope="session")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one") / "kimi-pods"
    render(REPOSITORY / "inventories" / "specs" / "reference-002.yml", out)
    return out


@pytest.fixture(scope="session")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two") / "kimi-pods"
    facts = REPOSITORY / "tests" / "data" / "facts" / "lab-nspawn.json"
    more = {"kimi_model": "kimi-k2-lab", "kimi_weights_source": "file:///srv/kimi/source"}
    render(facts, out, kimi_hosts_per_model=2, **more)
    return out


@pytest.fixture
def folder(one_node: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(one_node, tmp_path / "kimi-pods"))


@pytest.fixture
def cluster(program: Path, tmp_path: Path) -> Iterator[Cluster]:
    there = tmp_path / "cluster"
    there.mkdir()
    with kubernetes_api.serving(there) as (api, config):
        found = Cluster(api, config, there, program)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def whole_cluster(cluster: Cluster) -> Cluster:
    """One that is asked by a real kubectl: each question is, by some test."""
    cluster.quick = False
    return cluster


@pytest.fixture(scope="session")
def state(program: Path, one_node: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the API holds after an apply, for tests that begin there."""
    there = tmp_path_factory.mktemp("applied")
    with kubernetes_api.serving(there) as (api, config):
        Cluster(api, config, there, program).run("apply", one_node)
        return copy.deepcopy((api.stored, api.owners, api.number))


@pytest.fixture
def running(cluster: Cluster, state: Any) -> Cluster:
    """A cluster that a folder was applied to."""
    api = cluster.api
    api.stored, api.owners, api.number = copy.deepcopy(state)
    return cluster


class Said:
    """What a process writes, read as it comes: nobody waits in the pipe, and it is never full."""

    def __init__(self, stream: IO[str] | None) -> None:
        assert stream is not None
        self._lines: list[str] = []
        read = iter(stream.readline, "")
        self._thread = threading.Thread(target=lambda: self._lines.extend(read), daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        return "".join(self._lines)

    def whole(self) -> str:
        """All of it, once the process has ended."""
        self._thread.join(HANGS_S)
        return self.text


def applied(cluster: Cluster) -> list[str]:
    """What was changed, by the requests that changed it."""
    return [
        line.partition("?")[0]
        for line in cluster.api.requests
        if not line.startswith("GET") and "dryRun" not in line
    ]


def fetching(job: Any) -> dict[str, str]:
    """The labels that a job's controller puts on its pods."""
    own = job["spec"]["template"]["metadata"]["labels"]
    return {**own, "job-name": job["metadata"]["name"]}


def workload(cluster: Cluster) -> Any:
    return cluster.api.get("statefulsets", "kimi")


# apply


def test_a_folder_is_applied_and_the_second_time_nothing_changes(
    whole_cluster: Cluster, folder: Path
) -> None:
    cluster = whole_cluster
    done = cluster.run("apply", folder)
    assert "created    statefulset/kimi" in done.stdout
    assert "https://kimi.kimi.svc:8443/v1" in done.stdout
    assert MODEL in done.stdout
    for phase in ("objects", "weights", "engine"):
        assert f"kimi  {phase:<12} done in" in done.stderr
    assert workload(cluster)["spec"]["replicas"] == 1
    claim = cluster.api.get("persistentvolumeclaims", "kimi-models")
    assert claim is not None
    again = cluster.run("apply", folder)
    assert "created" not in again.stdout
    assert "changed" not in again.stdout.replace("unchanged", "")


def test_the_engine_waits_for_the_weights_and_holds_no_gpu_meanwhile(
    cluster: Cluster, folder: Path
) -> None:
    cluster.fetches = False
    process = cluster.start("apply", folder)
    assert until(lambda: cluster.api.all("jobs"))
    job = cluster.api.all("jobs")[0]
    labels = fetching(job)
    pod = {"metadata": {"name": "fetch-1", "labels": labels}, "status": {"phase": "Running"}}
    with cluster.api.lock:
        cluster.api.put("pods", pod)
        cluster.api.logs["fetch-1"] = "first\n12.0 GiB of 554.3 GiB (2 %)\n"
    said = Said(process.stderr)
    told = "12.0 GiB of 554.3 GiB (2 %)"
    assert until(lambda: told in said.text or process.poll() is not None)
    assert told in said.text
    assert workload(cluster) is None
    cluster.fetches = True
    assert process.wait(timeout=60) == 0
    assert workload(cluster)["spec"]["replicas"] == 1


def test_a_plan_of_which_too_little_is_known_is_told_before_anything_is_sent(
    cluster: Cluster, folder: Path
) -> None:
    file = folder / "plan.json"
    plan = json.loads(file.read_text())
    del plan["model"]["served_names"]
    file.write_text(json.dumps(plan))
    for command in ("apply", "start"):
        said = cluster.run(command, folder, code=2).stderr
        assert "plan.json: this is no plan: model: 'served_names' is a required property" in said
    assert cluster.api.requests == []


def test_check_changes_nothing_and_says_what_would_change(cluster: Cluster, folder: Path) -> None:
    done = cluster.run("apply", folder, "--check")
    assert "created    statefulset/kimi" in done.stdout
    assert applied(cluster) == []
    assert workload(cluster) is None


def test_diff_says_which_values_change(running: Cluster, folder: Path) -> None:
    running.quick = False
    cluster = running
    file = folder / "service.yaml"
    file.write_text(file.read_text().replace("port: 8443", "port: 9000", 1))
    done = cluster.run("apply", folder, "--check", "--diff")
    assert "changed    service/kimi" in done.stdout
    assert "8443" in done.stdout
    assert "9000" in done.stdout
    assert "unchanged" in done.stdout


def test_the_bytes_of_the_folder_as_they_are_now_are_applied(
    cluster: Cluster, folder: Path
) -> None:
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text() + "commonAnnotations: {site: mine}\n")
    cluster.run("apply", folder)
    assert workload(cluster)["metadata"]["annotations"]["site"] == "mine"


def no_gpus(cluster: Cluster, folder: Path) -> None:
    cluster.node("n1", gpu="0")


def no_secret(cluster: Cluster, folder: Path) -> None:
    cluster.api.drop("secrets", "kimi-key")


def add(folder: Path, row: Any) -> None:
    (folder / "mine.yaml").write_text(yaml.safe_dump(row))
    file = folder / "kustomization.yaml"
    kustomization = yaml.safe_load(file.read_text())
    kustomization["resources"].append("mine.yaml")
    file.write_text(yaml.safe_dump(kustomization))


@pytest.mark.parametrize(
    ("lacks", "finding", "told"),
    [
        (no_gpus, "cluster.devices", "needs: room for 1 pods of nvidia.com/gpu 8"),
        (no_secret, "cluster.secret", "create secret generic kimi-key --from-file=api-key=FILE"),
    ],
)
def test_what_a_cluster_lacks_is_a_finding_before_anything_is_changed(
    whole_cluster: Cluster, folder: Path, lacks: Any, finding: str, told: str
) -> None:
    cluster = whole_cluster
    lacks(cluster, folder)
    said = cluster.run("apply", folder, code=3).stderr
    assert said.count("blocker: kimi") == 1, said
    assert f"({finding})" in said
    assert told in said
    assert "fix:" in said
    assert applied(cluster) == []


def test_nodes_that_may_not_be_seen_do_not_block(whole_cluster: Cluster, folder: Path) -> None:
    cluster = whole_cluster
    cluster.api.forbidden |= {"nodes", "namespaces", "storageclasses", "secrets", "events"}
    said = cluster.run("apply", folder).stderr
    assert "(cluster.nodes)" in said
    assert "blocker" not in said


def test_a_group_needs_the_api_of_groups_and_a_node_for_each_pod(
    cluster: Cluster, two_nodes: Path
) -> None:
    # What a real kubectl says of a kind that the cluster does not know.
    cluster.quick = False
    said = cluster.run("apply", two_nodes, code=3).stderr
    assert "(cluster.api)" in said
    assert "install LeaderWorkerSet" in said
    absent = cluster.status(two_nodes, code=1)
    assert absent["provisioned"] is False
    cluster.quick = True
    cluster.api.resources.append(kubernetes_api.MORE["lws"])
    done = cluster.run("apply", two_nodes)
    assert "created    leaderworkerset/kimi" in done.stdout
    found = cluster.status(two_nodes)
    assert found["kubernetes"]["kind"] == "LeaderWorkerSet"
    assert [pod["name"] for pod in found["kubernetes"]["pods"]] == ["kimi-0", "kimi-0-1"]
    cluster.run("stop", two_nodes)
    row = cluster.api.get("leaderworkersets", "kimi")
    assert row is not None
    assert row["spec"]["replicas"] == 0
    assert cluster.status(two_nodes)["state"] == "stopped"


def test_a_groups_revision_is_that_of_its_leaders(cluster: Cluster, two_nodes: Path) -> None:
    cluster.api.resources.append(kubernetes_api.MORE["lws"])
    cluster.api.follow = lambda _: None
    revision = "leaderworkerset.sigs.k8s.io/template-revision-hash"
    labels = {f"app.kubernetes.io/{key}": value
              for key, value in (("instance", "kimi"), ("component", "engine"))}  # fmt: skip
    metadata = {"name": "kimi", "labels": labels}
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 2}}
    cluster.api.put("leaderworkersets", {"metadata": metadata, "spec": spec, "status": {}})
    crashed = {"name": "kimi-0", "labels": {**labels, revision: "old"}}
    cluster.api.put("pods", {"metadata": crashed, "status": ended("Error", 1)})
    for leaders, state in (("new", "starting"), ("old", "failed")):
        row = {"metadata": {"name": "kimi", "labels": {revision: leaders}}, "spec": {}}
        cluster.api.put("statefulsets", row)
        assert cluster.status(two_nodes, code=1)["state"] == state


def test_a_workload_of_another_kind_that_was_left_is_told(
    cluster: Cluster, two_nodes: Path
) -> None:
    cluster.api.resources.append(kubernetes_api.MORE["lws"])
    cluster.runs = False
    labels = {"app.kubernetes.io/instance": "kimi"}
    metadata = {"metadata": {"name": "kimi", "labels": labels}}
    template = {"template": {"metadata": {"labels": {"of": "before"}}}}
    cluster.api.put("statefulsets", {**metadata, "spec": {"replicas": 1, **template}})
    said = cluster.run("apply", two_nodes, "--check").stderr
    assert "warning: kimi" in said
    assert "delete statefulset/kimi" in said


# what goes wrong


def pod_status(cluster: Cluster, name: str, status: Any) -> None:
    with cluster.api.lock:
        found = cluster.api.get("pods", name)
        assert found is not None
        found["status"] = {"phase": "Pending", **status}


def container(**state: Any) -> Any:
    row = {"name": "engine", "image": IMAGE, "restartCount": 0, "state": {}, **state}
    return {"containerStatuses": [row]}


def waits(reason: str, message: str = "") -> Any:
    return container(state={"waiting": {"reason": reason, "message": message}})


def unschedulable(message: str) -> Any:
    row = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"conditions": [row]}


def ended(reason: str, code: int) -> Any:
    gone = {"terminated": {"reason": reason, "exitCode": code}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    return container(state=waiting, lastState=gone, restartCount=1)


def log(text: str) -> dict[str, str]:
    return {"kimi-0~": text}


# Each cause that is known: tests/unit/operate/test_kubernetes_causes.py.
@pytest.mark.parametrize(
    ("status", "logs", "code", "why", "fix"),
    [
        (waits("ImagePullBackOff", "no such host"), {}, 1, f"the image {IMAGE}", "registry"),
        (
            ended("Error", 1),
            log("loading\ntorch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\nRuntimeError"),
            1,
            "exit code 1, started 2 times: The GPU's memory ran out: torch.OutOfMemoryError",
            "kimi_concurrency",
        ),
    ],
)
def test_why_a_pod_does_not_come_up_is_said_with_what_to_do(
    whole_cluster: Cluster, folder: Path, status: Any, logs: Any, code: int, why: str, fix: str
) -> None:
    cluster = whole_cluster
    cluster.runs = False
    cluster.api.logs |= logs
    process = cluster.start("apply", folder)
    assert until(lambda: cluster.api.get("pods", "kimi-0"))
    pod_status(cluster, "kimi-0", status)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    error = said[said.index("error:") :]
    assert why in error
    assert fix in error[error.index("fix:") :]
    # A log is shown where there is one.
    assert ("  | " in said) == any(logs.values())


def test_what_passes_by_itself_is_waited_for(cluster: Cluster, folder: Path) -> None:
    cluster.runs = False
    cluster.patience_s = 600
    process = cluster.start("apply", folder)
    assert until(lambda: cluster.api.get("pods", "kimi-0"))
    pod_status(cluster, "kimi-0", waits("ErrImagePull", "timed out"))
    count = len(cluster.api.requests)
    assert until(lambda: len(cluster.api.requests) > count + 8)
    cluster.runs = True
    assert process.wait(timeout=60) == 0


def test_a_job_that_failed_is_told_with_its_log_and_made_anew_by_the_next_apply(
    whole_cluster: Cluster, folder: Path
) -> None:
    cluster = whole_cluster
    cluster.fetches = False
    process = cluster.start("apply", folder)
    assert until(lambda: cluster.api.all("jobs"))
    (job,) = cluster.api.all("jobs")
    name = job["metadata"]["name"]
    with cluster.api.lock:
        failed = {"metadata": {"name": "fetch-1", "labels": fetching(job)}}
        state = {"terminated": {"exitCode": 1, "reason": "Error"}}
        cluster.api.put("pods", {**failed, "status": {"phase": "Failed", **container(state=state)}})
        cluster.api.logs["fetch-1"] = "model-00001.safetensors: sha256 differs; fetch it again\n"
        conditions = [{"type": "Failed", "status": "True", "message": "backoff limit"}]
        job["status"] = {"conditions": conditions}
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"the job {name}, which fetches the weights, failed: backoff limit" in said
    assert "sha256 differs" in said
    assert cluster.status(folder, code=1)["kubernetes"]["fetch"]["state"] == "failed"
    cluster.fetches = True
    done = cluster.run("apply", folder)
    assert f"replaced   job/{name}" in done.stdout
    assert any(line == f"DELETE /apis/batch/v1/namespaces/kimi/jobs/{name}"
               for line in applied(cluster))  # fmt: skip


def test_what_only_an_event_tells_is_told(cluster: Cluster, folder: Path) -> None:
    cluster.runs = False
    process = cluster.start("apply", folder)
    assert until(lambda: workload(cluster))
    with cluster.api.lock:
        row = cluster.api.get("persistentvolumeclaims", "kimi-models")
        assert row is not None
        row["status"] = {"phase": "Pending"}
        about = "PersistentVolumeClaim/kimi-models"
        cluster.event(about, "ProvisioningFailed", "no space in pool")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3, said
    assert "the claim kimi-models gets no volume: no space in pool" in said


def test_what_another_has_changed_is_not_overwritten(running: Cluster, folder: Path) -> None:
    running.quick = False
    cluster = running
    key = ("services", "kimi", "kimi")
    cluster.api.stored[key]["spec"]["type"] = "NodePort"
    cluster.api.owners[key]["spec/type"] = "kubectl-edit"
    said = cluster.run("apply", folder, code=3).stderr
    assert 'conflict with "kubectl-edit": spec/type' in said
    assert "--force-conflicts" in said
    assert cluster.api.stored[key]["spec"]["type"] == "NodePort"


def test_a_serving_pod_of_before_is_left_to_its_controller(running: Cluster, folder: Path) -> None:
    """The cluster alone replaces pods: one that fails a probe at this moment may serve."""
    cluster = running
    cluster.runs = False
    pod = cluster.api.get("pods", "kimi-0")
    assert pod is not None
    # Labels of a revision are not the template's: the stand-in's own acting is left out.
    cluster.api.follow = lambda _: None
    pod["metadata"]["labels"] = {**pod["metadata"]["labels"], "controller-revision-hash": "old"}
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    status = {"readyReplicas": 0, "updateRevision": "new", "currentRevision": "old"}
    workload(cluster)["status"] = {**status, "updatedReplicas": 0}
    process = cluster.start("apply", folder)
    assert until(lambda: sum("/events" in line for line in cluster.api.requests) > 5)
    assert cluster.api.get("pods", "kimi-0") is not None
    with cluster.api.lock:
        workload(cluster)["status"] = {**status, "readyReplicas": 1, "updatedReplicas": 1}
    assert process.wait(timeout=60) == 0


def test_what_another_stops_is_waited_for_no_longer(cluster: Cluster, folder: Path) -> None:
    cluster.runs = False
    process = cluster.start("apply", folder)
    assert until(lambda: cluster.api.get("pods", "kimi-0"))
    with cluster.api.lock:
        workload(cluster)["spec"]["replicas"] = 0
        cluster.act()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was stopped or deleted while it was waited for" in said
    assert f"kimi-prov apply {folder}" in said


def test_pods_that_may_not_be_listed_are_not_taken_for_none(running: Cluster, folder: Path) -> None:
    running.quick = False
    running.api.forbidden |= {"pods"}
    for command in ("status", "stop", "apply"):
        assert "the user may not list pods" in running.run(command, folder, code=2).stderr


def test_a_claim_of_the_sites_own_does_not_fetch_the_weights_again(
    cluster: Cluster, folder: Path
) -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "mine"}}
    resources = {"requests": {"storage": "1Gi"}}
    add(folder, {**claim, "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources}})
    cluster.run("apply", folder)
    assert "replaced" not in cluster.run("apply", folder, "--check").stdout


def test_control_c_leaves_the_cluster_as_it_is(cluster: Cluster, folder: Path) -> None:
    cluster.fetches = False
    process = cluster.start("apply", folder)
    assert until(lambda: cluster.api.all("jobs"))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the cluster goes on" in said
    assert len(cluster.api.all("jobs")) == 1
    assert not [line for line in applied(cluster) if line.startswith("DELETE")]


def test_a_second_apply_of_the_folder_at_the_same_time_is_refused(
    cluster: Cluster, folder: Path
) -> None:
    cluster.fetches = False
    process = cluster.start("apply", folder)
    assert until(lambda: cluster.api.all("jobs"))
    assert str(process.pid) in cluster.run("apply", folder, code=3).stderr


# stop, start, status


def test_stop_keeps_the_volume_and_start_or_apply_starts_again(
    running: Cluster, folder: Path
) -> None:
    running.quick = False
    cluster = running
    serving = cluster.status(folder)
    assert serving["state"] == "serving"
    assert serving["kubernetes"]["plan_current"] is True
    (pod,) = serving["kubernetes"]["pods"]
    assert (pod["name"], pod["node"], pod["ready"]) == ("kimi-0", "n1", True)
    done = cluster.run("stop", folder, "--format", "json")
    assert "next:  kimi-prov start" in done.stderr
    closed_form.validate(json.loads(done.stdout), "stop")
    assert cluster.api.all("pods") == []
    stopped = cluster.status(folder)
    assert (stopped["state"], stopped["ok"]) == ("stopped", True)
    begun = cluster.run("start", folder, "--format", "json")
    closed_form.validate(json.loads(begun.stdout), "start")
    assert cluster.status(folder)["state"] == "serving"
    cluster.run("stop", folder)
    assert cluster.api.get("persistentvolumeclaims", "kimi-models")
    assert "scaled     statefulset/kimi" in cluster.run("apply", folder).stdout
    assert workload(cluster)["spec"]["replicas"] == 1


def test_a_folder_that_says_no_replicas_is_stopped(running: Cluster, folder: Path) -> None:
    file = folder / "statefulset.yaml"
    file.write_text(file.read_text().replace("replicas: 1\n", "replicas: 0\n"))
    done = running.run("apply", folder)
    assert "scaled     statefulset/kimi" in done.stdout
    assert "is stopped: the folder says replicas: 0" in done.stderr
    assert "https://" not in done.stdout
    assert workload(running)["spec"]["replicas"] == 0
    assert running.api.all("pods") == []


def test_status_tells_what_serves_and_what_does_not(cluster: Cluster, folder: Path) -> None:
    absent = cluster.status(folder, code=1)
    assert "kimi-prov apply" in absent["detail"]
    cluster.runs = False
    process = cluster.start("apply", folder)
    assert until(lambda: cluster.api.get("pods", "kimi-0"))
    assert cluster.status(folder, code=1)["state"] == "starting"
    pod_status(cluster, "kimi-0", ended("OOMKilled", 137))
    failed = cluster.status(folder, code=1)
    assert failed["state"] == "failed"
    assert "OOMKilled" in failed["detail"]
    assert failed["kubernetes"]["pods"][0]["restarts"] == 1
    assert process.wait(timeout=60) == 1
    text = cluster.run("status", folder, code=1).stdout
    assert "restarted 1 times" in text
    assert all(len(line) <= 80 for line in text.splitlines()[1:])


def test_weights_without_a_workload_are_not_a_model(running: Cluster, folder: Path) -> None:
    cluster = running
    cluster.api.drop("statefulsets", "kimi")
    found = cluster.status(folder, code=1)
    assert found["provisioned"] is False
    assert "there is no statefulset/kimi" in found["detail"]
    (job,) = cluster.api.all("jobs")
    failed = {"type": "Failed", "status": "True", "message": "backoff limit"}
    job["status"] = {"conditions": [failed]}
    assert cluster.status(folder, code=1)["state"] == "failed"


def test_status_says_that_another_plan_was_applied(running: Cluster, folder: Path) -> None:
    cluster = running
    annotations = workload(cluster)["spec"]["template"]["metadata"]["annotations"]
    annotations["kimi-prov.dev/plan-digest"] = "0" * 64
    assert cluster.status(folder)["kubernetes"]["plan_current"] is False


def test_stop_and_start_of_what_was_not_applied(whole_cluster: Cluster, folder: Path) -> None:
    cluster = whole_cluster
    for command in ("stop", "start"):
        said = cluster.run(command, folder, code=1).stderr
        assert "there is no statefulset/kimi" in said
        assert f"kimi-prov apply {folder}" in said


# what a path is, and kubectl itself


def test_a_folder_for_slurm_is_told_its_own_commands(
    cluster: Cluster, rendered: Path, tmp_path: Path
) -> None:
    for command in ("apply", "status", "verify", "stop", "start"):
        said = cluster.run(command, rendered, code=2).stderr
        assert "rendered for slurm" in said
        assert "kimi-prov submit, jobs, connect, chat and cancel" in said
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("kimi: {hosts: {one: {ansible_connection: local}}}\n")
    for command in ("apply", "status", "verify", "stop", "start"):
        said = cluster.run(command, inventory, "--context", "x", code=2).stderr
        assert "--context: belongs to a folder for Kubernetes" in said


def test_options_of_an_inventory_are_refused(cluster: Cluster, folder: Path) -> None:
    for option in (("--limit", "x"), ("--tags", "x"), ("-u", "root"), ("-e", "@x")):
        said = cluster.run("apply", folder, *option, code=2).stderr
        assert "belongs to an inventory" in said
    for command in ("connect", "chat"):
        said = cluster.run(command, folder, "--job", "1", code=2).stderr
        assert "--job: belongs to a folder for SLURM" in said
        said = cluster.run(command, folder, "--tunnel", code=2).stderr
        assert "--tunnel: belongs to an inventory" in said
        said = cluster.run(command, folder, "--ca", "ca.pem", code=2).stderr
        assert "--ca: belongs to a snippet" in said
    assert "--sbom" in cluster.run("status", folder, "--sbom", code=2).stderr
    assert cluster.api.requests == []


def test_the_namespace_is_the_folders_or_the_one_that_is_named(
    whole_cluster: Cluster, folder: Path
) -> None:
    cluster = whole_cluster
    said = cluster.run("apply", folder, "--namespace", "other", code=3).stderr
    assert "kubectl create namespace other" in said
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text() + "namespace: team\n")
    said = cluster.run("apply", folder, "--namespace", "other", code=2).stderr
    assert "go to the namespace team, and --namespace says other" in said
    assert "kubectl create namespace team" in cluster.run("apply", folder, code=3).stderr
    said = cluster.run("apply", folder, "--namespace=--all", code=2).stderr
    assert "expected a name" in said


def test_a_cluster_that_is_not_reached_is_exit_4(whole_cluster: Cluster, folder: Path) -> None:
    cluster = whole_cluster
    config = yaml.safe_load(cluster.config.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
    cluster.config.write_text(yaml.safe_dump(config))
    for command in ("apply", "status", "stop", "start", "connect", "chat"):
        said = cluster.run(command, folder, code=4, KIMI_API_KEY=KEY).stderr
        assert "refused" in said
        assert "cluster-info" in said


def test_a_context_or_a_login_that_is_none_is_bad_input(
    whole_cluster: Cluster, folder: Path
) -> None:
    cluster = whole_cluster
    assert "nope" in cluster.run("status", folder, "--context", "nope", code=2).stderr
    config = yaml.safe_load(cluster.config.read_text())
    config["users"][0]["user"]["token"] = "another"
    cluster.config.write_text(yaml.safe_dump(config))
    said = cluster.run("status", folder, code=2).stderr
    assert "logged in" in said or "nauthorized" in said
    del config["current-context"]
    cluster.config.write_text(yaml.safe_dump(config))
    said = cluster.run("status", folder, code=2).stderr
    assert "kubectl config get-contexts" in said


def test_a_folder_that_cannot_be_built_is_bad_input(whole_cluster: Cluster, folder: Path) -> None:
    cluster = whole_cluster
    file = folder / "service.yaml"
    file.write_text(f"  kind: Service\n{file.read_text()}")
    said = cluster.run("status", folder, code=2).stderr
    assert "service.yaml" in said
    assert f"kustomize {folder}" in said


def test_a_kubectl_that_is_missing_or_too_old_is_told(whole_cluster: Cluster, folder: Path) -> None:
    cluster = whole_cluster
    program = cluster.base / "bin" / "kubectl"
    version = {"clientVersion": {"gitVersion": "v1.20.2"}}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(version)}'\n")
    said = cluster.run("status", folder, code=2).stderr
    assert "v1.20.2 is older than 1.27" in said
    program.unlink()
    said = cluster.run("status", folder, code=2, PATH=str(program.parent)).stderr
    assert "kubectl is not on this machine" in said


# verify and connect


@pytest.fixture
def served(running: Cluster, tmp_path: Path) -> Iterator[int]:
    """A model behind the service, its certificate and key in the cluster's secrets."""
    pem = tls.make_self_signed(["kimi"])
    encoded = {
        "tls.crt": tls.extract_certificates(pem),
        "tls.key": "canary-of-tls",
        "api-key": f"{KEY}\n",
    }
    data = {name: base64.b64encode(text.encode()).decode() for name, text in encoded.items()}
    for name in ("kimi-key", "kimi-tls"):
        running.api.put("secrets", {"metadata": {"name": name}, "data": data})
    with model_stand_in.serving(tmp_path, pem, key=KEY, model=MODEL) as port:
        running.forwards(port)
        yield port


def test_verify_runs_the_acceptance_checks_through_the_service(
    cluster: Cluster, folder: Path, served: int
) -> None:
    cluster.quick = False
    done = cluster.run("verify", folder, "--format", "json")
    document = json.loads(done.stdout)
    closed_form.validate(document, "verify")
    (host,) = document["hosts"].values()
    found = {row["name"]: row["status"] for row in host["checks"]}
    assert found["chat"] == found["tls"] == found["wrong-key-refused"] == "ok"
    assert set(found.values()) == {"ok"}, found
    assert "held to the secret kimi-tls" in host["vantage_reason"]
    assert KEY not in cluster.calls + done.stdout + done.stderr
    assert "tls.key" not in cluster.calls
    # With a key that is none the checks fail.
    assert cluster.run("verify", folder, code=1, KIMI_API_KEY="another").returncode == 1


def test_the_full_suite_asks_through_the_service_and_says_what_it_cannot(
    running: Cluster, folder: Path, tmp_path: Path, served: int
) -> None:
    pem = (tmp_path / "model.pem").read_text()
    model = scripted_model.Model("ignorant")
    model.key, model.name = KEY, MODEL
    file = tmp_path / "result.xml"
    words = ("--suite", "full", "--skip", "needles", "--junit", file, "--format", "json")
    with scripted_model.serving(tmp_path, pem, model) as port:
        running.forwards(port)
        done = running.run("verify", folder, *words, code=1)
    document = json.loads(done.stdout)
    closed_form.validate(document, "verify")
    (host,) = document["hosts"].values()
    rows = {row["name"]: row for row in host["checks"]}
    assert [name for name, row in rows.items() if row["status"] == "fail"] == ["facts"]
    assert rows["facts"]["expected"] == "Ottawa"
    for name in ("code", "special-tokens", "chat-template", "instant", "prefix-cache"):
        assert rows[name]["status"] == "skip", rows[name]
        assert "only through its service" in rows[name]["detail"]
    left = [row for name, row in rows.items() if name.startswith("needles-")]
    assert left
    assert all("--skip" in row["detail"] for row in left)
    assert rows["image"]["status"] == rows["tool-in-reasoning"]["status"] == "ok"
    assert "facts: fail" in done.stderr
    assert file.read_text().count("<skipped") == len(
        [row for row in rows.values() if row["status"] == "skip"]
    )


def test_verify_looks_first_whether_the_model_serves(
    running: Cluster, folder: Path, served: int
) -> None:
    cluster = running
    # Nothing answers behind the service: asked, it would be out of reach.
    cluster.forwards(None)
    cluster.run("stop", folder)
    said = cluster.run("verify", folder, code=1).stderr
    assert "kimi is stopped" in said
    assert f"kimi-prov start {folder}" in said
    cluster.runs = False
    pod = cluster.start("start", folder)
    assert until(lambda: cluster.api.get("pods", "kimi-0"))
    said = cluster.run("verify", folder, code=1).stderr
    assert "kimi does not serve: 0 of 1 ready" in said
    assert f"kimi-prov apply {folder}" in said
    status = {**ended("OOMKilled", 137), **unschedulable("0/1 nodes are available")}
    pod_status(cluster, "kimi-0", status)
    assert pod.wait(timeout=60) != 0
    said = cluster.run("verify", folder, code=1).stderr
    assert "OOMKilled" in said
    cluster.api.drop("statefulsets", "kimi")
    said = cluster.run("verify", folder, code=1).stderr
    assert "there is no statefulset/kimi" in said
    assert f"kimi-prov apply {folder}" in said


def test_verify_holds_the_server_to_the_certificate_of_the_secret(
    cluster: Cluster, folder: Path, served: int
) -> None:
    other = base64.b64encode(
        tls.extract_certificates(tls.make_self_signed(["x"])).encode()
    ).decode()
    cluster.api.put("secrets", {"metadata": {"name": "kimi-tls"}, "data": {"tls.crt": other}})
    assert "another certificate was shown" in cluster.run("verify", folder, code=1).stdout
    # Without a secret that may be read it is the one that came through the API server.
    cluster.api.drop("secrets", "kimi-tls")
    assert "through the API server" in " ".join(cluster.run("verify", folder).stdout.split())


def test_the_key_comes_from_a_file_the_environment_or_the_secret(
    cluster: Cluster, folder: Path, served: int, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    cluster.api.drop("secrets", "kimi-key")
    said = cluster.run("verify", folder, code=1).stderr
    assert "KIMI_API_KEY" in said
    cluster.run("verify", folder, "--api-key-file", file)
    cluster.run("verify", folder, KIMI_API_KEY=KEY)
    file.write_text("two words")
    said = cluster.run("verify", folder, "--api-key-file", file, code=2).stderr
    assert "expected a key" in said
    assert "two words" not in said


class Connected:
    """The command while it runs."""

    def __init__(self, cluster: Cluster, folder: Path, *words: object) -> None:
        line = ("connect", folder, "--every", "0.3", "--format", "json", *words)
        self.process = cluster.start(*line)
        document, self._said = Said(self.process.stdout), Said(self.process.stderr)
        ended = self.process.poll
        assert until(lambda: document.text.endswith("\n}\n") or ended() is not None), self.said
        assert document.text.endswith("\n}\n"), self._said.whole()
        self.document = json.loads(document.text)
        closed_form.validate(self.document, "connect")

    @property
    def said(self) -> str:
        return self._said.text

    def models(self) -> int:
        """What a client gets that has no more than the document's files."""
        key = Path(self.document["key_file"]).read_text().strip()
        trusted = ssl.create_default_context(cafile=self.document["certificate_file"])
        headers = {"Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"{self.document['base_url']}/models", headers=headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:  # noqa: S310
            return int(answer.status)

    def answers(self) -> bool:
        try:
            return self.models() == 200
        except OSError:
            return False

    def end(self) -> str:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(timeout=60) == 130
        return self._said.whole()


def test_a_client_reaches_the_service_with_what_is_printed(
    cluster: Cluster, folder: Path, served: int
) -> None:
    cluster.quick = False
    found = Connected(cluster, folder)
    assert found.models() == 200
    assert found.document["model"] == MODEL
    assert found.document["node"] == "n1"
    assert Path(found.document["key_file"]).stat().st_mode & 0o777 == 0o600
    said = found.end()
    assert KEY not in said + cluster.calls
    assert not found.answers()


@pytest.fixture
def engine(running: Cluster, served: int, tmp_path: Path) -> Iterator[Engine]:
    """The same with a model that answers questions; its certificate is for kimi and localhost."""
    found = Engine(KEY)
    there = tmp_path / "engine"
    there.mkdir()
    with chat_stand_in.serving(there, (tmp_path / "model.pem").read_text(), found) as port:
        running.forwards(port)
        yield found


def pasted(cluster: Cluster, folder: Path, *words: object) -> str:
    """What the snippet for curl answers while the way is open."""
    process = cluster.start("connect", folder, "--for", "curl", *words)
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while lines[-1] not in ("EOF\n", ""):
        lines.append(process.stdout.readline())
    done = subprocess.run(
        ["bash", "-c", "".join(lines)], capture_output=True, text=True, check=False
    )
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert KEY not in "".join(lines) + out + err + cluster.calls
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["choices"][0]["message"]["content"])


def test_a_snippet_asks_the_service(cluster: Cluster, folder: Path, engine: Engine) -> None:
    assert pasted(cluster, folder) == HELLO
    assert engine.asked[0]["messages"][0]["content"].startswith("You are Kimi")


def test_a_snippet_trusts_the_authority_of_a_certificate_for_another_name(
    cluster: Cluster, folder: Path, running: Cluster, tmp_path: Path
) -> None:
    authority, pem = signed(["kimi.example.com"])
    data = {"tls.crt": base64.b64encode(tls.extract_certificates(pem).encode()).decode()}
    running.api.put("secrets", {"metadata": {"name": "kimi-tls"}, "data": data})
    ca = tmp_path / "ca.pem"
    ca.write_text(authority)
    environment = {"KIMI_API_KEY": KEY}
    with chat_stand_in.serving(tmp_path, pem, Engine(KEY)) as port:
        running.forwards(port)
        said = cluster.run("connect", folder, "--for", "curl", code=1, **environment).stderr
        assert "kimi: clients refuse its certificate as kimi.example.com" in said
        assert "--ca FILE" in said
        file = tmp_path / "api.key"
        file.write_text(KEY)
        assert pasted(cluster, folder, "--ca", ca, "--api-key-file", file) == HELLO
        # This program has the certificate of the cluster's secret, and needs nobody's word.
        done = chatted(cluster, folder, **environment)
        assert done.stdout == f"{HELLO}\n"


def chatted(cluster: Cluster, folder: Path, code: int = 0, **environment: str) -> command_line.Done:
    return cluster.run("chat", folder, code=code, given="Say hello.", **environment)


def test_a_chat_asks_the_service_and_finds_the_key_in_the_secret(
    cluster: Cluster, folder: Path, engine: Engine
) -> None:
    done = chatted(cluster, folder)
    assert done.stdout == f"{HELLO}\n"
    assert KEY not in done.stderr + cluster.calls
    assert not list(cluster.base.rglob("api.key"))
    cluster.run("stop", folder)
    done = chatted(cluster, folder, code=1)
    assert done.stdout == ""
    assert "kimi is stopped" in done.stderr


def answers_at(shown: str) -> bool:
    """Whether anything takes a connection at the address that a chat began with."""
    found = re.search(r"https://127\.0\.0\.1:(\d+)/v1", shown)
    assert found
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(found[1]))) == 0


def test_a_chat_goes_on_at_another_pod(
    cluster: Cluster, folder: Path, engine: Engine, tmp_path: Path
) -> None:
    chat = OnTerminal(["chat", folder], tmp_path, cluster.environment)
    try:
        assert chat.shows("Ctrl-D leaves")
        chat.type("wait\n")
        assert chat.shows("Hello from")
        chat.type(CTRL_C)
        assert chat.shows("interrupted")
        port = int((cluster.base / "forwards").read_text())
        cluster.forwards(None)
        assert until(lambda: not answers_at(chat.text))
        for number in (1, 2):
            chat.type(f"unanswered {number}\n")
            assert chat.shows("lost connection to pod")
        cluster.forwards(port)
        chat.type("next\n")
        assert chat.shows("tokens")
        kept = [row["content"] for row in engine.asked[-1]["messages"] if row["role"] != "system"]
        assert (len(kept), kept[0], kept[-1]) == (3, "wait", "next")
        chat.type(CTRL_D)
        assert chat.ends() == 0
    finally:
        chat.kill()


def test_a_way_that_is_lost_is_opened_again_at_the_same_port(
    cluster: Cluster, folder: Path, served: int
) -> None:
    found = Connected(cluster, folder)
    cluster.forwards(None)
    assert until(lambda: not found.answers())
    cluster.forwards(served)
    assert until(lambda: "it answers again" in found.said)
    assert found.answers()
    said = found.end()
    assert "lost connection to pod" in said
    assert "\x1b" not in said


def test_a_way_whose_pod_is_gone_is_opened_again_though_no_client_comes(
    cluster: Cluster, folder: Path, served: int
) -> None:
    found = Connected(cluster, folder)
    cluster.forwards(free_port())
    assert until(lambda: "lost connection to pod" in found.said)
    cluster.forwards(served)
    assert until(lambda: "it answers again" in found.said)
    found.end()


def test_connect_ends_when_the_model_is_stopped(
    cluster: Cluster, folder: Path, served: int
) -> None:
    found = Connected(cluster, folder)
    cluster.run("stop", folder)
    assert found.process.wait(timeout=60) == 1
    assert until(lambda: "kimi was stopped" in found.said)
    assert "kimi is stopped" in cluster.run("connect", folder, code=1).stderr


def test_connect_ends_when_the_model_fails(cluster: Cluster, folder: Path, served: int) -> None:
    found = Connected(cluster, folder)
    with cluster.api.lock:
        # Labels and pods stay as they are from here: the stand-in's own acting is left out.
        cluster.api.follow = lambda _: None
        workload(cluster)["status"]["readyReplicas"] = 0
        pod_status(cluster, "kimi-0", ended("OOMKilled", 137))
    assert found.process.wait(timeout=60) == 1
    assert until(lambda: "OOMKilled" in found.said)
    assert "trying again" not in found.said


def test_connect_ends_when_its_key_is_none_any_more(
    cluster: Cluster, folder: Path, served: int, tmp_path: Path
) -> None:
    pem = (tmp_path / "model.pem").read_text()
    found = Connected(cluster, folder)
    there = tmp_path / "rotated"
    there.mkdir()
    with model_stand_in.serving(there, pem, key="another", model=MODEL) as port:
        cluster.forwards(None)
        assert until(lambda: "trying again" in found.said)
        cluster.forwards(port)
        assert found.process.wait(timeout=60) == 1
    assert until(lambda: "HTTP 401" in found.said)


def test_a_way_that_stands_is_kept_while_the_cluster_is_away_or_a_pod_is_not_ready(
    cluster: Cluster, folder: Path, served: int
) -> None:
    found = Connected(cluster, folder)
    with cluster.api.lock:
        cluster.api.follow = lambda _: None
        workload(cluster)["status"]["readyReplicas"] = 0
    assert until(lambda: "0 of 1 ready" in found.said)
    assert found.answers()
    calls = cluster.calls.count("port-forward")
    kept = cluster.config.read_text()
    config = yaml.safe_load(kept)
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
    cluster.config.write_text(yaml.safe_dump(config))
    assert until(lambda: "refused" in found.said)
    assert found.answers()
    cluster.config.write_text(kept)
    assert cluster.calls.count("port-forward") == calls
    found.end()


def test_a_certificate_for_other_names_is_told(
    cluster: Cluster, folder: Path, served: int, tmp_path: Path
) -> None:
    # Self-signed ones of ours name the loopback; an authority's does not.
    file, request = tmp_path / "k.pem", tmp_path / "c.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", file, "-out", request, "-subj", "/CN=kimi.example.com",
         "-addext", "subjectAltName=DNS:kimi.example.com", "-days", "2"],
        check=True, capture_output=True,
    )  # fmt: skip
    encoded = base64.b64encode(request.read_bytes()).decode()
    cluster.api.put("secrets", {"metadata": {"name": "kimi-tls"}, "data": {"tls.crt": encoded}})
    pem = request.read_text() + file.read_text()
    there = tmp_path / "other"
    there.mkdir()
    with model_stand_in.serving(there, pem, key=KEY, model=MODEL) as port:
        cluster.forwards(port)
        found = Connected(cluster, folder)
        assert until(lambda: "certificate is none for 127.0.0.1" in found.said)
        found.end()
