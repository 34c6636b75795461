"""Objects for a Kubernetes cluster, as its schemas, kubectl and an operator take them."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
import yaml
from engine_metrics import VLLM, names
from kubernetes_kinds import (
    VERSIONS,
    beyond_restricted,
    broken_promises,
    check_schema,
    loaded,
    not_guaranteed,
    objects,
    one,
    size,
    templates,
)

from kimi_prov import cli
from kimi_prov.planner.registry import DEFINITIONS
from kimi_prov.render import planned
from kimi_prov.render.kubernetes import quota
from kimi_prov.show.exit_handling import run_guarded

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
SPECS = ROOT / "inventories" / "specs"
MODELS = "kimi_prov/catalog/models.yaml"
LAB = ROOT / "tests" / "data" / "facts" / "lab-nspawn.json"
METRICS = ROOT / "tests" / "data" / "recordings" / "metrics"
GOLDEN = ROOT / "tests" / "data" / "golden" / "kubernetes"
GIB = 1 << 30
IMAGE = "kimi_kubernetes_image: registry.example.com/kimi:0.19.1\n"
VARIABLES = {
    "reference-002": f"""{IMAGE}
kimi_weights_source: hf://moonshotai/Kimi-K2.5@0123456789abcdef0123456789abcdef01234567
kimi_kubernetes_namespace: models
kimi_kubernetes_storage_class: fast-nvme
kimi_kubernetes_cache_volume: true
kimi_kubernetes_node_selector: {{nvidia.com/gpu.product: NVIDIA-H200}}
kimi_kubernetes_tolerations: {{dedicated: NoSchedule}}
kimi_kubernetes_image_pull_secret: registry
kimi_kubernetes_hostname: kimi.example.com
kimi_kubernetes_web_hostname: chat.example.com
kimi_kubernetes_ingress_class: nginx
kimi_kubernetes_ingress_namespace: ingress-nginx
kimi_kubernetes_monitoring_namespace: monitoring
kimi_kubernetes_stop_schedule: "0 20 * * 1-5"
kimi_kubernetes_start_schedule: "0 7 * * 1-5"
kimi_kubernetes_time_zone: Europe/Vienna
kimi_web_ui: true
kimi_allowed_networks: [10.0.0.0/8]
kimi_https_proxy: http://me:canary-secret@proxy.example.com:3128
""",
    "quote-2x-8x-h100": f"""{IMAGE}
kimi_kubernetes_name: kimi-two
kimi_kubernetes_rdma_resource: rdma/hca_shared_devices_a
kimi_kubernetes_seccomp_profile: profiles/numa.json
kimi_kubernetes_hostname: kimi.example.com
kimi_kubernetes_gateway_class: istio
kimi_kubernetes_stop_schedule: "@weekly"
""",
}
WORKLOADS = {
    "reference-002": ("StatefulSet", "kimi"),
    "quote-2x-8x-h100": ("LeaderWorkerSet", "kimi-two"),
}
_NOT_GOLDEN = ("plan.json", "render.json")


def run(*words: str) -> int:
    return int(run_guarded(lambda: cli.cli.main(list(words), standalone_mode=False)))


def render(target: str, output: Path, *more: str, variables: str | None = None) -> int:
    file = output.parent / f"{Path(target).stem}.vars.yml"
    file.write_text(VARIABLES[target] if variables is None else variables)
    sheet = target if "/" in target else str(SPECS / f"{target}.yml")
    words = ("render", "kubernetes", sheet, "--vars", str(file), "--output", str(output))
    return run(*words, *more)


def read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def plan_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return found


@pytest.fixture(scope="module", params=sorted(VARIABLES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("render") / str(request.param)
    assert render(str(request.param), output) == 0
    return output


def template_of(folder: Path) -> dict[str, Any]:
    (found,) = templates(one(folder, *WORKLOADS[folder.name]))
    return found


# --- the folder


def test_the_files_are_the_golden_ones(folder: Path) -> None:
    golden = GOLDEN / folder.name
    found = {n: c.decode() for n, c in read(folder).items() if n not in _NOT_GOLDEN}
    if os.environ.get("KIMI_PROV_GOLDEN") == "write":
        shutil.rmtree(golden, ignore_errors=True)
        golden.mkdir(parents=True)
        for name, text in found.items():
            (golden / name).write_text(text)
    assert found == {name: content.decode() for name, content in read(golden).items()}


def test_the_record_names_every_file_with_its_digest(folder: Path) -> None:
    record = json.loads((folder / "render.json").read_text())
    closed_form.validate(record, "render")
    assert record["kind"] == "kubernetes"
    there = {name: content for name, content in read(folder).items() if name != "render.json"}
    told = {row["path"]: row["sha256"] for row in record["files"]}
    assert told == {name: hashlib.sha256(there[name]).hexdigest() for name in there}
    closed_form.validate(plan_of(folder), "plan")
    assert (
        template_of(folder)["metadata"]["annotations"]["kimi-prov.dev/plan-digest"]
        == (record["plan_digest"])
    )


def test_the_same_input_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    assert render(folder.name, tmp_path / "elsewhere") == 0
    assert read(tmp_path / "elsewhere") == read(folder)


def test_nothing_of_this_machine_and_no_secret_is_in_them(folder: Path) -> None:
    for name, content in read(folder).items():
        assert b"canary-secret" not in content, name
        assert str(folder.parent).encode() not in content, name
        assert str(Path.home()).encode() + b"/" not in content, name
    assert not [row for row in objects(folder) if row["kind"] == "Secret"]


def test_a_changed_file_is_kept_and_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "reference-002"
    assert render("reference-002", output) == 0
    (output / "statefulset.yaml").write_text("# mine\n")
    capfd.readouterr()
    assert render("reference-002", output) == 0
    assert "kept, because it was changed by hand: statefulset.yaml" in capfd.readouterr().err
    assert (output / "statefulset.yaml").read_text() == "# mine\n"
    assert render("reference-002", output, "--force") == 0
    assert (output / "statefulset.yaml").read_text() != "# mine\n"


def test_what_is_wished_for_no_more_goes(tmp_path: Path) -> None:
    output = tmp_path / "reference-002"
    assert render("reference-002", output) == 0
    assert (output / "web.yaml").exists()
    assert render("reference-002", output, variables=IMAGE) == 0
    names = set(read(output))
    assert names == {
        *("README.md", "fetch-job.yaml", "kustomization.yaml", "networkpolicy.yaml", "pdb.yaml"),
        *("plan.json", "pvc.yaml", "render.json", "service.yaml", "statefulset.yaml"),
    }


def test_a_folder_of_another_kind_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "reference-002"
    sheet = str(SPECS / "reference-002.yml")
    assert run("render", "slurm", sheet, "--root", "/p", "--output", str(output)) == 0
    before = read_all(output)
    assert render("reference-002", output) == 2
    assert "was rendered for slurm, not for kubernetes" in capfd.readouterr().err
    assert read_all(output) == before


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_file_says_what_it_is(folder: Path) -> None:
    for name, content in read(folder).items():
        if not name.endswith(".json"):
            assert content.decode().splitlines()[0].startswith(("# ", "<!-- ")), name


# --- what Kubernetes takes


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_as_its_schema_says(folder: Path, version: str) -> None:
    rows = objects(folder)
    assert len(rows) >= 12
    for row in rows:
        check_schema(row, version)


def test_a_field_that_nobody_knows_is_found(folder: Path) -> None:
    """Mutation: the schemas are strict, of Kubernetes and of the other kinds."""
    for row in objects(folder):
        if row["kind"] in ("ConfigMap", "ServiceAccount", "Role", "RoleBinding"):
            continue
        row["spec"]["replica"] = 1
        with pytest.raises(Exception, match="replica"):
            check_schema(row, VERSIONS[-1])
    for template in templates(one(folder, *WORKLOADS[folder.name])):
        template["spec"]["container"] = []
        row = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "x"}}
        row["spec"] = {"selector": {}, "serviceName": "x", "template": template}
        with pytest.raises(Exception, match="container"):
            check_schema(row, VERSIONS[-1])


def test_the_steps_of_the_page_go_in_their_order_and_to_one_namespace(folder: Path) -> None:
    readme = (folder / "README.md").read_text()
    # A file that a command reads, another made before.
    for made, read in (("-out tls.crt", "--cert=tls.crt"), ("cp tls.crt ca.crt", "=ca.crt")):
        assert -1 < readme.index(made) < readme.index(read)
    asked = re.findall(
        r"(?:kubectl (?:apply -k|scale)|kimi-prov (?!render|image)[a-z]+) [^`\n]+", readme
    )
    assert len(asked) >= 9
    named = "--namespace NAMESPACE" if folder.name != "reference-002" else ""
    for line in asked:
        assert named in line, line
        assert named or line.startswith("kubectl scale") or "--namespace" not in line, line


def test_selectors_find_the_pods_that_are_meant(folder: Path) -> None:
    rows = objects(folder)
    labels = {}
    for row in rows:
        for template in templates(row):
            labels[row["kind"], row["metadata"]["name"]] = template["metadata"]["labels"]
    workload = WORKLOADS[folder.name]

    def found(selector: dict[str, str]) -> list[tuple[str, str]]:
        own = {k: v for k, v in selector.items() if not k.startswith("leaderworkerset")}
        return sorted(key for key, has in labels.items() if own.items() <= has.items())

    name = workload[1]
    assert found(one(folder, "Service", name)["spec"]["selector"]) == [workload]
    assert found(one(folder, "PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"]) == [
        workload
    ]
    policies = {
        row["metadata"]["name"]: found(row["spec"]["podSelector"]["matchLabels"])
        for row in rows
        if row["kind"] == "NetworkPolicy"
    }
    assert policies[name] == [workload]
    assert [kind for kind, _ in policies[f"{name}-fetch"]] == ["Job"]
    if folder.name == "reference-002":
        assert policies["kimi-web"] == [("StatefulSet", "kimi-web")]
        monitor = one(folder, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
        services = [r for r in rows if r["kind"] == "Service"]
        chosen = [r for r in services if monitor.items() <= r["metadata"]["labels"].items()]
        assert [row["metadata"]["name"] for row in chosen] == ["kimi"]


# --- the engine's pod


def test_the_pod_is_as_its_image_and_an_operator_expect(folder: Path) -> None:
    cache = "persistentVolumeClaim" if folder.name == "reference-002" else "emptyDir"
    assert list(broken_promises(template_of(folder), cache=cache)) == []


def _without_mount(path: str) -> Callable[[dict[str, Any]], None]:
    def change(template: dict[str, Any]) -> None:
        (engine,) = template["spec"]["containers"]
        kept = [row for row in engine["volumeMounts"] if row["mountPath"] != path]
        assert len(kept) + 1 == len(engine["volumeMounts"])
        engine["volumeMounts"] = kept

    return change


def _without(*keys: Any) -> Callable[[dict[str, Any]], None]:
    def change(template: dict[str, Any]) -> None:
        value: Any = template
        for key in keys[:-1]:
            value = value[key]
        del value[keys[-1]]

    return change


_ENGINE = ("spec", "containers", 0)
MUTATIONS = {
    **{
        path: _without_mount(path)
        for path in (
            *("/etc/kimi", "/run/kimi/key", "/run/kimi/tls", "/srv/kimi", "/var/cache/kimi"),
            *("/tmp", "/dev/shm"),
        )
    },
    **{
        f"{name}Probe": _without(*_ENGINE, f"{name}Probe")
        for name in ("startup", "readiness", "liveness")
    },
    "patience": _without(*_ENGINE, "readinessProbe", "timeoutSeconds"),
    "long start": _without(*_ENGINE, "startupProbe", "failureThreshold"),
    "args": _without(*_ENGINE, "args"),
    "limits": _without(*_ENGINE, "resources", "limits", "memory"),
    "requests": _without(*_ENGINE, "resources", "requests", "cpu"),
    "drop": _without(*_ENGINE, "securityContext", "capabilities", "drop"),
    "escalation": _without(*_ENGINE, "securityContext", "allowPrivilegeEscalation"),
    "read-only": _without(*_ENGINE, "securityContext", "readOnlyRootFilesystem"),
    "non-root": _without("spec", "securityContext", "runAsNonRoot"),
    "seccomp": _without("spec", "securityContext", "seccompProfile"),
    "waiting": _without("spec", "initContainers"),
    "token": _without("spec", "automountServiceAccountToken"),
    "digest": _without("metadata", "annotations", "kimi-prov.dev/plan-digest"),
    "port": _without(*_ENGINE, "ports"),
    "model is writable": _without(*_ENGINE, "volumeMounts", 3, "readOnly"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_whatever_is_taken_from_the_pod_is_missed(folder: Path, mutation: str) -> None:
    cache = "persistentVolumeClaim" if folder.name == "reference-002" else "emptyDir"
    template = copy.deepcopy(template_of(folder))
    before = list(broken_promises(template, cache=cache))
    MUTATIONS[mutation](template)
    assert len(list(broken_promises(template, cache=cache))) > len(before)


def test_memory_is_the_plans_and_every_part_of_it_counts(folder: Path) -> None:
    plan, spec = plan_of(folder), template_of(folder)["spec"]
    (engine,) = spec["containers"]
    limit = size(engine["resources"]["limits"]["memory"])
    processes = sum(
        part["bytes"] for part in plan["memory"]["host_parts"] if part["kind"] != "system"
    )
    in_memory = [v["emptyDir"] for v in spec["volumes"] if v.get("emptyDir", {}).get("medium")]
    shared = sum(size(volume["sizeLimit"]) for volume in in_memory)
    files = plan["weights"]["bytes"] // plan["parallel"]["hosts"]
    # 16 GiB of processes, 2 GiB of /dev/shm for each of eight workers, and the files of the node.
    assert (processes, shared) == (16 * GIB, 16 * GIB)
    assert limit == 32 * GIB + files // GIB * GIB
    assert limit <= plan["memory"]["host_ram_available_bytes"] * 15 // 16


def test_processors_are_whole_cores_of_the_node(folder: Path) -> None:
    (engine,) = template_of(folder)["spec"]["containers"]
    # A core, of two threads, for each GPU's process and for the one that schedules; eight threads
    # that read requests. The node has 224.
    assert engine["resources"]["limits"]["cpu"] == "26"
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "8"


@pytest.mark.parametrize(
    ("variables", "memory", "cpus"),
    [
        ("", 586, 26),
        ("kimi_kubernetes_memory_gib: 64\nkimi_kubernetes_cpus: 32\n", 64, 32),
        ("kimi_kubernetes_memory_gib: 32\n", 32, 26),
    ],
)
def test_a_site_says_how_much_a_pod_asks_for(
    tmp_path: Path, variables: str, memory: int, cpus: int
) -> None:
    assert render("reference-002", tmp_path / "out", variables=IMAGE + variables) == 0
    limits = one(tmp_path / "out", "StatefulSet")["spec"]["template"]["spec"]["containers"][0][
        "resources"
    ]["limits"]
    assert (limits["memory"], limits["cpu"]) == (f"{memory}Gi", str(cpus))


def test_the_start_has_the_plans_time(tmp_path: Path) -> None:
    variables = f"{IMAGE}kimi_start_timeout_s: 4321\n"
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    probe = one(tmp_path / "out", "StatefulSet")["spec"]["template"]["spec"]["containers"][0][
        "startupProbe"
    ]
    assert 4321 <= probe["periodSeconds"] * probe["failureThreshold"] < 4331


def test_answers_may_end_before_the_pod_does(folder: Path) -> None:
    spec, argv = template_of(folder)["spec"], plan_of(folder)["instances"][0]["argv"]
    drain = int(argv[argv.index("--shutdown-timeout") + 1])
    assert 0 < drain < spec["terminationGracePeriodSeconds"]


def test_the_plan_is_in_the_images_paths(folder: Path) -> None:
    plan = plan_of(folder)
    (instance,) = plan["instances"]
    assert instance["argv"][:2] == ["/opt/kimi/engine/bin/python", "-m"]
    assert plan["engine"]["env_dir"] == "/opt/kimi/engine"
    told = " ".join([*instance["argv"], *instance["env"].values()])
    assert "/srv/kimi/engines" not in told
    assert "/srv/kimi/cache" not in told
    assert f"--model {plan['weights']['dir']}" in told
    flags = {word.removeprefix("--") for word in instance["argv"] if word.startswith("--")}
    assert not flags & planned.OF_THE_RUN
    assert not set(instance["env"]) & planned.ENVIRONMENT_OF_THE_RUN


def test_memory_is_placed_where_the_nodes_allow_it(folder: Path) -> None:
    """The runtimes' own profile keeps mbind from a pod: numactl would end it."""
    (instance,) = plan_of(folder)["instances"]
    profile = template_of(folder)["spec"]["securityContext"]["seccompProfile"]
    if folder.name == "reference-002":
        assert profile == {"type": "RuntimeDefault"}
        assert instance["numactl"] == []
    else:
        assert profile == {"type": "Localhost", "localhostProfile": "profiles/numa.json"}
        assert "--numa-bind" in instance["argv"]


def test_a_version_that_binds_workers_itself_does_not_in_a_pod(tmp_path: Path) -> None:
    variables = f"{IMAGE}kimi_engine_version: '0.32.0'\n"
    assert render("quote-8x-h200", tmp_path / "out", variables=variables) == 0
    plan = plan_of(tmp_path / "out")
    assert "numa-bind" not in " ".join(plan["instances"][0]["argv"])
    assert "kubernetes.numa" in {row["id"] for row in plan["findings"]}
    profile = f"{variables}kimi_kubernetes_seccomp_profile: numa.json\n"
    assert render("quote-8x-h200", tmp_path / "two", variables=profile) == 0
    plan = plan_of(tmp_path / "two")
    assert "--numa-bind" in plan["instances"][0]["argv"]
    assert "kubernetes.numa" not in {row["id"] for row in plan["findings"]}


def test_every_pod_is_guaranteed_and_restricted(folder: Path) -> None:
    seen = 0
    for row in objects(folder):
        for template in templates(row):
            seen += 1
            assert list(beyond_restricted(template["spec"])) == [], row["metadata"]["name"]
            assert list(not_guaranteed(template["spec"])) == [], row["metadata"]["name"]
    assert seen == (5 if folder.name == "reference-002" else 3)


@pytest.mark.parametrize(("threads", "cores"), [(224, 112), (64, 32), (16, 16), (8, 4)])
@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteMany"])
def test_the_job_has_room_beside_the_engine(
    tmp_path: Path, threads: int, cores: int, mode: str
) -> None:
    """A volume of one node is mounted where the engine's pod waits: the Job must fit there."""
    facts = json.loads(LAB.read_text())
    facts["cpu"] |= {"threads": threads, "cores": cores}
    node = tmp_path / "node.json"
    node.write_text(json.dumps(facts))
    variables = (
        "kimi_kubernetes_image: localhost/kimi:lab\nkimi_model: kimi-k2-lab\n"
        "kimi_weights_source: file:///srv/kimi/source\n"
        f"kimi_kubernetes_access_mode: {mode}\n"
    )
    assert render(str(node), tmp_path / "out", variables=variables) == 0
    asked = {
        part["name"]: size(part["resources"]["limits"]["cpu"])
        for row in objects(tmp_path / "out")
        for template in templates(row)
        for part in template["spec"]["containers"]
    }
    system = max(min(4, threads // 4), threads // 16)
    fetch = asked["fetch"] if mode == "ReadWriteOnce" else 0
    assert asked["engine"] + fetch <= threads - system
    # Nothing lies idle but what makes no whole core.
    assert asked["engine"] + fetch > threads - system - threads // cores


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_who_asks_for_whole_processors_asks_for_whole_cores(tmp_path: Path, workers: int) -> None:
    """A kubelet with full-pcpus-only refuses other pods (SMTAlignmentError)."""
    variables = f"{VARIABLES['reference-002']}kimi_weights_workers: {workers}\n"
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    asked = {
        part["name"]: size(part["resources"]["limits"]["cpu"])
        for row in objects(tmp_path / "out")
        for template in templates(row)
        for part in [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]
    }
    # Two threads a core; who asks for a part of a processor gets none of its own.
    assert [name for name, cpu in asked.items() if cpu % 1 == 0 and cpu % 2] == []
    assert asked["fetch"] >= workers


def test_network_cards_are_asked_for_between_nodes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert render("quote-2x-8x-h100", tmp_path / "out") == 0
    assert "kubernetes.rdma" not in capfd.readouterr().err
    (template,) = templates(one(tmp_path / "out", "LeaderWorkerSet", "kimi-two"))
    limits = template["spec"]["containers"][0]["resources"]["limits"]
    assert limits["rdma/hca_shared_devices_a"] == "1"
    assert render("quote-2x-8x-h100", tmp_path / "two", variables=IMAGE) == 0
    assert "kubernetes.rdma" in capfd.readouterr().err


def test_a_group_starts_and_restarts_as_a_whole(tmp_path: Path) -> None:
    assert render("quote-2x-8x-h100", tmp_path / "out") == 0
    spec = one(tmp_path / "out", "LeaderWorkerSet", "kimi-two")["spec"]
    group = spec["leaderWorkerTemplate"]
    assert (group["size"], group["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    assert spec["startupPolicy"] == "LeaderCreated"
    # Its headless Service may not have the name of the Service of clients.
    assert spec["networkConfig"]["subdomainPolicy"] == "UniquePerReplica"
    service = one(tmp_path / "out", "Service", "kimi-two")["spec"]["selector"]
    assert service["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    assert one(tmp_path / "out", "PodDisruptionBudget", "kimi-two")["spec"]["minAvailable"] == 2
    volume = one(tmp_path / "out", "PersistentVolumeClaim", "kimi-two-models")["spec"]
    assert volume["accessModes"] == ["ReadWriteMany"]
    policy = one(tmp_path / "out", "NetworkPolicy", "kimi-two")["spec"]
    assert any("ports" not in row for row in policy["ingress"])
    argv = plan_of(tmp_path / "out")["instances"][0]["argv"]
    assert argv[argv.index("--pipeline-parallel-size") + 1] == "2"


@pytest.mark.parametrize("hosts", [1, 2])
def test_nodes_without_gpus_are_rendered_too(tmp_path: Path, hosts: int) -> None:
    variables = (
        f"kimi_kubernetes_image: localhost/kimi:lab\nkimi_model: kimi-k2-lab\n"
        f"kimi_weights_source: file:///srv/kimi/source\nkimi_hosts_per_model: {hosts}\n"
    )
    assert render(str(LAB), tmp_path / "out", variables=variables) == 0
    kind = "LeaderWorkerSet" if hosts == 2 else "StatefulSet"
    (template,) = templates(one(tmp_path / "out", kind))
    limits = template["spec"]["containers"][0]["resources"]["limits"]
    assert sorted(limits) == ["cpu", "ephemeral-storage", "memory"]
    assert "tolerations" not in template["spec"]
    assert list(broken_promises(template)) == []
    (shared,) = (v["emptyDir"] for v in template["spec"]["volumes"] if v["name"] == "shm")
    # Two workers talk through it; one has its buffers there.
    assert size(shared["sizeLimit"]) == (8 if hosts == 2 else 1) * GIB
    for row in objects(tmp_path / "out"):
        check_schema(row, VERSIONS[0])
    policy = one(tmp_path / "out", "NetworkPolicy", "kimi-fetch")["spec"]
    assert {row["port"] for rule in policy["egress"] for row in rule["ports"]} == {53}


# --- what it fetches, who reaches it, when it runs


def test_a_job_that_does_something_else_has_another_name(tmp_path: Path) -> None:
    """A Job cannot be changed: kubectl apply would fail."""

    def job(folder: str, variables: str) -> dict[str, Any]:
        output = tmp_path / folder
        assert render("reference-002", output, variables=variables) == 0
        (found,) = (row for row in objects(output) if row["kind"] == "Job")
        return found

    first = job("first", IMAGE)
    assert first["metadata"]["name"].startswith("kimi-fetch-main-")
    # The plan changes, and the Job does not.
    assert job("other", f"{IMAGE}kimi_concurrency: 8\n") == first
    changed = job("image", IMAGE.replace("0.19.1", "0.19.2"))
    assert changed["metadata"]["name"] != first["metadata"]["name"]
    pinned = "hf://moonshotai/Kimi-K2.5@0123456789abcdef0123456789abcdef01234567"
    other = job("revision", f"{IMAGE}kimi_weights_source: {pinned}\n")
    assert other["metadata"]["name"].startswith("kimi-fetch-0123456789-")
    # Of one revision another mirror, manifest or address of the hub is another Job, too.
    rows = [{"path": "config.json", "size": 5, "sha256": "a" * 64}]
    (tmp_path / "manifest").write_text(json.dumps({"files": rows}))
    mirror = f"{IMAGE}kimi_weights_source: https://%s.example.com/kimi\n"
    hub = f"{IMAGE}kimi_weights_source: {pinned}\nkimi_hf_endpoint: https://%s.example.com\n"
    named = f"{IMAGE}kimi_weights_source: {pinned}\nkimi_weights_manifest: {tmp_path}/manifest\n"
    variables = [mirror % "one", mirror % "two", hub % "one", hub % "two", named]
    found = [job(f"source-{n}", text) for n, text in enumerate(variables)]
    assert len({row["metadata"]["name"] for row in [first, other, *found]}) == len(found) + 2


def test_a_running_engine_keeps_the_plan_that_it_was_started_with(tmp_path: Path) -> None:
    """A ConfigMap that changes changes in running pods, hours before they are made anew."""

    def plan_map(folder: str, variables: str) -> str:
        output = tmp_path / folder
        assert render("reference-002", output, variables=variables) == 0
        (template,) = templates(one(output, "StatefulSet"))
        (found,) = (row for row in template["spec"]["volumes"] if row["name"] == "plan")
        digest = template["metadata"]["annotations"]["kimi-prov.dev/plan-digest"]
        assert found["configMap"]["name"] == f"kimi-plan-{digest[:8]}"
        return str(found["configMap"]["name"])

    assert plan_map("first", IMAGE) != plan_map("other", f"{IMAGE}kimi_concurrency: 8\n")


def test_the_job_writes_to_the_volume_that_the_engine_reads(folder: Path) -> None:
    (job,) = (row for row in objects(folder) if row["kind"] == "Job")
    spec, engine = job["spec"]["template"]["spec"], template_of(folder)["spec"]
    (fetch,) = spec["containers"]
    assert fetch["args"] == ["fetch"]
    mounts = {row["mountPath"]: row for row in fetch["volumeMounts"]}
    assert not mounts["/srv/kimi"].get("readOnly")
    claims = [
        next(
            v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if v["name"] == "models"
        )
        for pod in (spec, engine)
    ]
    assert claims[0] == claims[1]
    assert spec.get("nodeSelector") == engine.get("nodeSelector")
    assert spec.get("tolerations") == engine.get("tolerations")
    volume = one(folder, "PersistentVolumeClaim", claims[0])["spec"]["resources"]["requests"]
    assert size(volume["storage"]) > plan_of(folder)["weights"]["bytes"]


def test_the_volume_of_the_token_is_for_the_hub_alone(tmp_path: Path) -> None:
    mirror = f"{IMAGE}kimi_weights_source: https://mirror.example.com:8444/kimi\n"
    assert render("reference-002", tmp_path / "out", variables=mirror) == 0
    text = (tmp_path / "out" / "fetch-job.yaml").read_text()
    assert "kimi-hub" not in text
    policy = one(tmp_path / "out", "NetworkPolicy", "kimi-fetch")["spec"]
    assert {row["port"] for rule in policy["egress"] for row in rule["ports"]} == {53, 8444}


def test_the_engine_of_one_node_asks_nobody_and_is_asked_by_few(tmp_path: Path) -> None:
    assert render("reference-002", tmp_path / "out") == 0
    policy = one(tmp_path / "out", "NetworkPolicy")["spec"]
    assert policy["egress"] == []
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": 8443, "protocol": "TCP"}]
    spaces = [
        row["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for row in rule["from"]
        if "namespaceSelector" in row
    ]
    assert spaces == ["ingress-nginx", "monitoring"]
    assert [row["ipBlock"]["cidr"] for row in rule["from"] if "ipBlock" in row] == ["10.0.0.0/8"]
    assert all(rule["from"]), "an empty peer is everybody"


_OUTSIDE = "kimi_kubernetes_hostname: a.example.com\nkimi_web_ui: true\n"
_OUTSIDE += "kimi_kubernetes_web_hostname: b.example.com\n"


@pytest.mark.parametrize("class_", ["ingress_class: nginx", "gateway_class: istio"])
def test_a_controller_that_the_policy_shuts_out_is_told(tmp_path: Path, class_: str) -> None:
    variables = f"{IMAGE}{_OUTSIDE}kimi_kubernetes_{class_}\n"

    def told(folder: str, more: str) -> bool:
        assert render("reference-002", tmp_path / folder, variables=variables + more) == 0
        rows = plan_of(tmp_path / folder)["findings"]
        return any("kimi_kubernetes_ingress_namespace" in str(row["fix"]) for row in rows)

    assert told("out", "")
    assert not told("named", "kimi_kubernetes_ingress_namespace: edge\n")
    for name in ("kimi", "kimi-web"):
        ((rule,), (named,)) = (
            one(tmp_path / folder, "NetworkPolicy", name)["spec"]["ingress"]
            for folder in ("out", "named")
        )
        # A Gateway's pods may run beside the Gateway, by this label of the Gateway API's.
        own = {"podSelector": {"matchLabels": {"gateway.networking.k8s.io/gateway-name": "kimi"}}}
        assert (own in rule["from"]) == class_.startswith("gateway")
        space = {"matchLabels": {"kubernetes.io/metadata.name": "edge"}}
        assert {"namespaceSelector": space} in named["from"]


def test_only_the_api_is_seen_from_outside_and_by_tls(folder: Path) -> None:
    if folder.name == "reference-002":
        ingress = one(folder, "Ingress")
        (rule,) = ingress["spec"]["rules"]
        assert [path["path"] for path in rule["http"]["paths"]] == ["/v1"]
        assert ingress["spec"]["tls"] == [{"hosts": ["kimi.example.com"], "secretName": "kimi-tls"}]
        told = ingress["metadata"]["annotations"]
        assert told["nginx.ingress.kubernetes.io/backend-protocol"] == "HTTPS"
        assert told["nginx.ingress.kubernetes.io/whitelist-source-range"] == "10.0.0.0/8"
        page = one(folder, "Ingress", "kimi-web")["metadata"]["annotations"]
        assert "nginx.ingress.kubernetes.io/backend-protocol" not in page
    else:
        listeners = one(folder, "Gateway", "kimi-two")["spec"]["listeners"]
        assert [row["protocol"] for row in listeners] == ["HTTPS"]
        (rule,) = one(folder, "HTTPRoute", "kimi-two")["spec"]["rules"]
        assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
        backend = one(folder, "BackendTLSPolicy", "kimi-two")["spec"]["validation"]
        assert backend["hostname"] == "kimi.example.com"


def test_without_tls_in_the_cluster_nothing_asks_for_a_certificate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    variables = VARIABLES["reference-002"] + "kimi_kubernetes_tls: false\n"
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    assert "kubernetes.tls" in capfd.readouterr().err
    told = list(
        broken_promises(
            one(tmp_path / "out", "StatefulSet")["spec"]["template"], cache="persistentVolumeClaim"
        )
    )
    assert told == ["/run/kimi/tls: is no secret"]
    texts = {name: content.decode() for name, content in read(tmp_path / "out").items()}
    assert not [
        n for n, text in texts.items() if n != "plan.json" and re.search(r"kimi-ca\b", text)
    ]
    assert "scheme: http\n" in texts["servicemonitor.yaml"]
    assert "backend-protocol" not in texts["ingress.yaml"]
    assert "http://kimi:8443/v1" in texts["web.yaml"]


def test_the_schedule_may_scale_one_object_and_nothing_else(folder: Path) -> None:
    kind, name = WORKLOADS[folder.name]
    role = one(folder, "Role", f"{name}-schedule")
    plural = f"{kind.lower()}s"
    assert [(rule["resources"], rule["verbs"]) for rule in role["rules"]] == [
        ([plural], ["get"]),
        ([f"{plural}/scale"], ["get", "patch", "update"]),
    ]
    assert all(rule["resourceNames"] == [name] for rule in role["rules"])
    jobs = {row["metadata"]["name"]: row for row in objects(folder) if row["kind"] == "CronJob"}
    asked = {
        n: next(
            word
            for word in templates(row)[0]["spec"]["containers"][0]["args"]
            if "replicas" in word
        )
        for n, row in jobs.items()
    }
    stop = {f"{name}-stop": "--replicas=0"}
    start = {f"{name}-start": "--replicas=1"} if folder.name == "reference-002" else {}
    assert asked == stop | start
    if folder.name == "reference-002":
        assert jobs["kimi-stop"]["spec"]["timeZone"] == "Europe/Vienna"


# --- monitoring


def test_rules_are_written_where_somebody_monitors(folder: Path) -> None:
    assert ("rules.yaml" in read(folder)) == (folder.name == "reference-002")


def test_every_metric_is_one_that_the_engine_has(tmp_path: Path) -> None:
    assert render("reference-002", tmp_path / "out") == 0
    # As each version that is pinned shows them.
    recorded = [(METRICS / f"vllm-{version}.txt").read_text() for version in VLLM]
    known = set.intersection(*map(names, recorded))
    board = json.loads(
        one(tmp_path / "out", "ConfigMap", "kimi-dashboard")["data"]["models-kimi.json"]
    )
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = one(tmp_path / "out", "PrometheusRule")["spec"]["groups"][0]["rules"]
    asked = {n for text in shown for n in re.findall(r"vllm:\w+", text)}
    alerted = {n for row in rules for n in re.findall(r"vllm:\w+", row["expr"])}
    assert len(asked) >= 9
    assert len(alerted) >= 6
    assert (asked | alerted) - known == set()
    # Each looks at this model alone, by the label that the ServiceMonitor makes.
    for text in [*shown, *(row["expr"] for row in rules)]:
        looked = text.count('{job="kimi",namespace="models"}')
        assert looked == len(re.findall(r"vllm:\w+|\bup\b", text))
    monitor = one(tmp_path / "out", "ServiceMonitor")["spec"]
    service = one(tmp_path / "out", "Service")
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "kimi"
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_the_key_of_the_metrics_is_one_of_their_own(tmp_path: Path) -> None:
    """Prometheus reads all Secrets that it is named: the key of the API is none of them."""
    assert render("reference-002", tmp_path / "out") == 0
    (endpoint,) = one(tmp_path / "out", "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "kimi-key", "key": "metrics-key"}
    spec = one(tmp_path / "out", "StatefulSet")["spec"]["template"]["spec"]
    (key,) = (v["secret"] for v in spec["volumes"] if v["name"] == "key")
    assert [row["key"] for row in key["items"]] == ["api-key", "metrics-key"]
    assert "--from-file=metrics-key" in (tmp_path / "out" / "README.md").read_text()


def test_dashboards_of_two_namespaces_are_two(tmp_path: Path) -> None:
    variables = f"{IMAGE}kimi_kubernetes_monitoring_namespace: monitoring\n"
    boards: dict[str, dict[str, Any]] = {}
    for namespace in ("one", "two", None):
        words = ("--namespace", namespace) if namespace else ()
        output = tmp_path / str(namespace)
        assert render("reference-002", output, *words, variables=variables) == 0
        data = one(output, "ConfigMap", "kimi-dashboard")["data"]
        boards |= {name: json.loads(text) for name, text in data.items()}
    assert list(boards) == ["one-kimi.json", "two-kimi.json", "kimi.json"]
    assert len({board["uid"] for board in boards.values()}) == 3
    assert len({board["title"] for board in boards.values()}) == 3
    # Where none is known, whoever looks at it chooses one.
    board = boards["kimi.json"]
    assert "namespace" in {row["name"] for row in board["templating"]["list"]}
    for panel in board["panels"]:
        assert all('namespace="$namespace"' in row["expr"] for row in panel["targets"])


def test_panels_do_not_lie_on_each_other(tmp_path: Path) -> None:
    assert render("reference-002", tmp_path / "out") == 0
    board = json.loads(
        one(tmp_path / "out", "ConfigMap", "kimi-dashboard")["data"]["models-kimi.json"]
    )
    taken = set()
    for panel in board["panels"]:
        grid = panel["gridPos"]
        cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert not cells & taken
        taken |= cells


# --- the page


def test_the_page_has_its_volume_and_its_secrets(tmp_path: Path) -> None:
    assert render("reference-002", tmp_path / "out") == 0
    page = one(tmp_path / "out", "StatefulSet", "kimi-web")["spec"]["template"]["spec"]
    (web,) = page["containers"]
    env = {row["name"]: row for row in web["env"]}
    for name in ("OPENAI_API_KEY", "WEBUI_SECRET_KEY", "WEBUI_ADMIN_PASSWORD"):
        assert "value" not in env[name]
        assert env[name]["valueFrom"]["secretKeyRef"]["name"] in ("kimi-key", "kimi-web")
    assert env["OPENAI_API_BASE_URL"]["value"] == "https://kimi:8443/v1"
    assert env["OFFLINE_MODE"]["value"] == "true"
    writable = {row["mountPath"] for row in web["volumeMounts"] if not row.get("readOnly")}
    for name in ("DATA_DIR", "HOME", "STATIC_DIR"):
        assert any(env[name]["value"].startswith(path) for path in writable), name
    assert web["image"] == "ghcr.io/open-webui/open-webui:v0.12.4-slim"
    own = VARIABLES["reference-002"] + "kimi_kubernetes_web_image: registry.example.com/web:1\n"
    assert render("reference-002", tmp_path / "own", variables=own) == 0
    page = one(tmp_path / "own", "StatefulSet", "kimi-web")["spec"]["template"]["spec"]
    assert page["containers"][0]["image"] == "registry.example.com/web:1"


# --- quotas

QUOTA = """
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: ResourceQuota
    metadata: {name: gpus, namespace: kimi}
    spec: {hard: %s}
    status: {used: %s}
  - apiVersion: v1
    kind: LimitRange
    metadata: {name: range, namespace: kimi}
    spec: {limits: [%s]}
"""


@pytest.mark.parametrize(
    ("hard", "used", "limit", "code", "told"),
    [
        ("{requests.nvidia.com/gpu: 8, limits.memory: 1Ti}", "{}", "", 0, None),
        ("{requests.nvidia.com/gpu: 4}", "{}", "", 3, "requests.nvidia.com/gpu: 4"),
        ("{requests.cpu: 20}", "{}", "", 3, "needs: 30"),
        ("{cpu: 20}", "{}", "", 3, "needs: 30"),
        ("{memory: 500Gi}", "{}", "", 3, "needs: 590Gi"),
        ("{limits.cpu: 31000m}", "{}", "", 0, None),
        ("{pods: 1}", "{}", "", 3, "needs: 2"),
        ("{requests.storage: 500Gi}", "{}", "", 3, "needs: 584Gi"),
        ("{persistentvolumeclaims: 0}", "{}", "", 3, "persistentvolumeclaims: 0"),
        ("{count/jobs.batch: 0}", "{}", "", 3, "count/jobs.batch"),
        ("{services.loadbalancers: 0}", "{}", "", 0, None),
        ("{requests.nvidia.com/gpu: 8}", "{requests.nvidia.com/gpu: 8}", "", 0, "0 of 8 left"),
        ("{}", "{}", "{type: Container, max: {cpu: 16}}", 3, "max of a Container: cpu: 16"),
        ("{}", "{}", "{type: Pod, max: {memory: 100Gi}}", 3, "max of a Pod: memory: 100Gi"),
        ("{}", "{}", "{type: Container, min: {cpu: 5}}", 0, None),
        ("{}", "{}", "{type: Container, min: {cpu: 300}}", 3, "min of a Container: cpu: 300"),
        ("{}", "{}", "{type: Container, min: {cpu: 500m}}", 0, None),
        ("{}", "{}", "{type: Container, min: {memory: 100Mi}}", 0, None),
        ("{}", "{}", "{type: Pod, min: {cpu: 500m}}", 0, None),
        ("{}", "{}", "{type: PersistentVolumeClaim, max: {storage: 1e11}}", 3, "93.132Gi"),
        ("{}", "{}", "{type: Container, max: {cpu: 1k}}", 0, None),
    ],
)
def test_quotas_are_held_against(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    hard: str,
    used: str,
    limit: str,
    code: int,
    told: str | None,
) -> None:
    file = tmp_path / "quota.yaml"
    file.write_text(QUOTA % (hard, used, limit))
    words = ("--quota", str(file), "--namespace", "kimi")
    assert render("reference-002", tmp_path / "out", *words, variables=IMAGE) == code
    said = " ".join(capfd.readouterr().err.split())
    assert (tmp_path / "out").exists() == (code == 0)
    if told:
        assert told in said
    elif code == 0:
        rows = {row["id"]: row for row in plan_of(tmp_path / "out")["findings"]}
        assert rows["kubernetes.quota"]["severity"] == "pass"


def test_quotas_of_pods_that_are_not_ours_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "quota.json"
    rows = [
        {"scopes": ["BestEffort"], "hard": {"pods": "0"}},
        {"scopes": ["Terminating"], "hard": {"requests.cpu": "1"}},
        {
            "scopeSelector": {
                "matchExpressions": [
                    {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
                ]
            },
            "hard": {"pods": "0"},
        },
    ]
    file.write_text(
        json.dumps(
            {
                "kind": "List",
                "items": [
                    {"kind": "ResourceQuota", "metadata": {"name": f"q{n}"}, "spec": spec}
                    for n, spec in enumerate(rows)
                ],
            }
        )
    )
    words = ("--quota", str(file))
    assert render("reference-002", tmp_path / "out", *words, variables=IMAGE) == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no ResourceQuota and no LimitRange"),
        ("kind: Pod\n", "no ResourceQuota and no LimitRange"),
        ("[1]\n", "no object of Kubernetes"),
        ("kind: ResourceQuota\nspec: {hard: {cpu: many}}\n", "expected a quantity"),
        ("kind: ResourceQuota\nspec: {hard: {cpu: true}}\n", "expected a quantity"),
        ("kind: ResourceQuota\nmetadata: {namespace: other}\n", "is of namespace other"),
        ("a: &a [x]\nb: *a\nkind: {\n", "quota.yaml"),
        (
            'kind: ResourceQuota\nmetadata: {name: "a\\u001b[2J"}\nspec: {hard: {pods: x}}\n',
            "\\x1b[2J",
        ),
    ],
)
def test_files_that_are_no_quotas_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    file = tmp_path / "quota.yaml"
    file.write_text(text)
    words = ("--quota", str(file), "--namespace", "kimi")
    assert render("reference-002", tmp_path / "out", *words, variables=IMAGE) == 2
    said = capfd.readouterr().err
    assert told in " ".join(said.split())
    assert "\x1b[2J" not in said


def test_files_of_several_documents_are_read(tmp_path: Path) -> None:
    file = tmp_path / "quota.yaml"
    one_row = "kind: ResourceQuota\nmetadata: {name: %s}\nspec: {hard: {pods: %s}}\n"
    file.write_text("---\n" + one_row % ("a", 9) + "---\n" + one_row % ("b", 1))
    assert render("reference-002", tmp_path / "x", "--quota", str(file), variables=IMAGE) == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("1k", 1000), ("1e3", 1000), ("2Ki", 2048), ("1.5Gi", 1.5 * GIB), (4, 4)],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: object, value: float) -> None:
    assert quota.parse_amount(text, "x") == value


# --- what is refused, and what is told


@pytest.mark.parametrize(
    ("target", "variables", "identity"),
    [
        ("quote-xeon-6980p", "", "kubernetes.experts"),
        # vLLM's own kernels, by the plugin all the same: no image has it.
        ("quote-xeon-6980p", "kimi_experts: vllm\n", "kubernetes.experts"),
        ("reference-002", "kimi_weights_source: file:///data/kimi\n", "kubernetes.source"),
        ("reference-002", "kimi_kubernetes_memory_gib: 31\n", "kubernetes.room"),
        ("reference-002", "kimi_kubernetes_memory_gib: 3000\n", "kubernetes.room"),
        ("reference-002", "kimi_kubernetes_cpus: 225\n", "kubernetes.room"),
        # With a volume of one node the Job runs beside it.
        ("reference-002", "kimi_kubernetes_cpus: 222\n", "kubernetes.room"),
        ("reference-002", "kimi_kubernetes_hostname: a.example.com\n", "kubernetes.ingress"),
        ("reference-002", "kimi_kubernetes_ingress_class: nginx\n", "kubernetes.ingress"),
        (
            "reference-002",
            (
                "kimi_kubernetes_hostname: a.example.com\nkimi_kubernetes_ingress_class: nginx\n"
                "kimi_kubernetes_gateway_class: istio\n"
            ),
            "kubernetes.ingress",
        ),
        ("reference-002", "kimi_kubernetes_web_hostname: a.b\n", "kubernetes.ingress"),
        (
            "quote-2x-8x-h100",
            "kimi_kubernetes_access_mode: ReadWriteOnce\n",
            "kubernetes.access_mode",
        ),
        ("quote-8x-mi300x", "", "kubernetes.engine_lock"),
    ],
)
def test_what_cannot_work_is_a_blocker_and_writes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], target: str, variables: str, identity: str
) -> None:
    assert render(target, tmp_path / "out", variables=IMAGE + variables) == 3
    told = capfd.readouterr().err
    assert f"({identity})" in " ".join(told.split())
    assert "nothing was written" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ("kimi_model: kimi-k2.5\n", "kimi_kubernetes_image is not set"),
        (f"{IMAGE}kimi_kubernetes_name: Kimi\n", "vars.yml:2: kimi_kubernetes_name: expected"),
        (f"{IMAGE}kimi_kubernetes_name: {'a' * 37}\n", "kimi_kubernetes_name: expected"),
        ('kimi_kubernetes_image: "a b"\n', "kimi_kubernetes_image: expected an image"),
        ('kimi_kubernetes_image: "a\\nhostPID: true"\n', "kimi_kubernetes_image: expected"),
        (f"{IMAGE}kimi_kubernetes_name: 1a\n", "kimi_kubernetes_name: expected"),
        (f"{IMAGE}kimi_kubernetes_namespace: a.b\n", "kimi_kubernetes_namespace: expected"),
        (f"{IMAGE}kimi_kubernetes_hostname: '*.a'\n", "kimi_kubernetes_hostname: expected"),
        (f"{IMAGE}kimi_kubernetes_gpu_resource: gpu\n", "kimi_kubernetes_gpu_resource: expected"),
        (f"{IMAGE}kimi_kubernetes_node_selector: {{a: true}}\n", "a label's value as text"),
        (f"{IMAGE}kimi_kubernetes_node_selector: {{'a b': c}}\n", "expected a key"),
        (f"{IMAGE}kimi_kubernetes_tolerations: {{a: Never}}\n", "expected an effect"),
        (f"{IMAGE}kimi_kubernetes_seccomp_profile: /etc/x\n", "kimi_kubernetes_seccomp_profile"),
        (f"{IMAGE}kimi_kubernetes_seccomp_profile: ../x\n", "kimi_kubernetes_seccomp_profile"),
        (f"{IMAGE}kimi_kubernetes_stop_schedule: 20:00\n", "kimi_kubernetes_stop_schedule"),
        (f"{IMAGE}kimi_kubernetes_imag: x\n", "did you mean kimi_kubernetes_image"),
    ],
)
def test_wrong_variables_are_refused_with_their_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], variables: str, told: str
) -> None:
    assert render("reference-002", tmp_path / "out", variables=variables) == 2
    assert told in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_what_the_cluster_must_have_is_told_with_how_to_see_it(folder: Path) -> None:
    rows = {row["id"]: row for row in plan_of(folder)["findings"]}
    wanted = {"device_plugin", "driver", "cpu_manager", "memory_manager", "topology_manager"}
    wanted |= {"tuning", "storage", "network_policy", "quota", "pod_security", "ingress"}
    wanted |= {"lws"} if folder.name == "quote-2x-8x-h100" else {"monitoring"}
    for name in wanted:
        assert "kubectl" in str(rows[f"kubernetes.{name}"]["fix"]), name
        assert rows[f"kubernetes.{name}"]["required"], name
    readme = (folder / "README.md").read_text()
    for identity, row in rows.items():
        assert (f"(`{identity}`)" in readme) == (row["severity"] != "pass"), identity


def test_every_finding_of_the_subject_is_made_somewhere() -> None:
    folder = ROOT / "kimi_prov" / "render" / "kubernetes"
    source = "".join(path.read_text() for path in sorted(folder.glob("*.py")))
    for name in DEFINITIONS:
        if name.startswith("kubernetes."):
            assert f'"{name}"' in source, name


def test_settings_without_effect_are_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    variables = f"{IMAGE}kimi_hf_token_file: {tmp_path}/token\nkimi_ram_disk: always\n"
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    rows = {row["id"]: row for row in plan_of(tmp_path / "out")["findings"]}
    assert rows["kubernetes.settings"]["observed"] == "kimi_hf_token_file, kimi_ram_disk"
    assert "--from-file=token=FILE" in rows["kubernetes.settings"]["required"]


@pytest.mark.parametrize(
    ("class_", "controller"),
    [("my-nginx", "k8s.io/ingress-nginx"), ("haproxy", "haproxy.org/ingress-controller")],
)
def test_the_controller_that_a_class_is_taken_for_is_named(
    tmp_path: Path, class_: str, controller: str
) -> None:
    """A class's name says little: others' controllers of nginx and HAProxy read other words."""
    variables = f"{IMAGE}{_OUTSIDE}kimi_kubernetes_ingress_class: {class_}\n"
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    (row,) = (r for r in plan_of(tmp_path / "out")["findings"] if r["id"] == "kubernetes.ingress")
    assert controller in row["required"]
    assert f"kubectl get ingressclass {class_} -o 'jsonpath={{.spec.controller}}'" in row["fix"]


@pytest.mark.parametrize(
    ("class_", "told"),
    [("ingress_class: nginx", False), ("ingress_class: traefik", True), ("gateway_class: x", True)],
)
def test_networks_that_nobody_keeps_to_are_told(tmp_path: Path, class_: str, told: bool) -> None:
    variables = f"{IMAGE}{_OUTSIDE}kimi_kubernetes_{class_}\nkimi_allowed_networks: [10.0.0.0/8]\n"
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    rows = [
        row for row in plan_of(tmp_path / "out")["findings"] if row["id"] == "kubernetes.ingress"
    ]
    assert any("kimi_allowed_networks" in row["observed"] for row in rows) == told
    assert all(row["severity"] == "warning" for row in rows if "networks" in row["observed"])


def test_instances_of_a_machine_have_no_effect_in_a_pod(tmp_path: Path) -> None:
    variables = f"{IMAGE}kimi_instances: 2\n"
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    rows = {row["id"]: row for row in plan_of(tmp_path / "out")["findings"]}
    assert rows["kubernetes.settings"]["observed"] == "kimi_instances"


def test_what_the_control_machine_has_is_not_in_the_plan(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nAA==\n")
    (tmp_path / "token").write_text("canary-secret")
    variables = (
        f"{IMAGE}kimi_pip_find_links: {tmp_path}/wheels\nkimi_ca_bundle: {tmp_path}/ca.pem\n"
        f"kimi_hf_token_file: {tmp_path}/token\n"
    )
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    for name, content in read(tmp_path / "out").items():
        assert str(tmp_path).encode() not in content, name
        assert b"canary-secret" not in content, name


def test_a_draft_has_room_in_the_volume_and_is_waited_for(tmp_path: Path) -> None:
    drafts = [row["name"] for row in yaml.safe_load((ROOT / MODELS).read_text())["drafts"]]
    variables = f"{IMAGE}kimi_speculative_model: {drafts[0]}\n"
    assert render("quote-8x-h200", tmp_path / "plain", variables=IMAGE) == 0
    assert render("quote-8x-h200", tmp_path / "out", variables=variables) == 0
    plan = plan_of(tmp_path / "out")
    folders = (tmp_path / "plain", tmp_path / "out")
    claims = [one(folder, "PersistentVolumeClaim", "kimi-models") for folder in folders]
    plain, both = (size(row["spec"]["resources"]["requests"]["storage"]) for row in claims)
    # Each is rounded up to a GiB.
    assert both - plain > plan["weights"]["draft"]["bytes"] - GIB
    (template,) = templates(one(tmp_path / "out", "StatefulSet"))
    (waits,) = template["spec"]["initContainers"]
    assert f"{plan['weights']['draft']['dir']}/.kimi-verified" in waits["env"][0]["value"].split()


def test_the_room_for_another_revision_is_told(folder: Path) -> None:
    """Each revision has a folder of its own, and nothing removes the old one."""
    name = WORKLOADS[folder.name][1]
    claim = one(folder, "PersistentVolumeClaim", f"{name}-models")["spec"]["resources"]
    (row,) = (r for r in plan_of(folder)["findings"] if "revision" in r["title"])
    sizes = [size(text) for text in re.findall(r"[0-9]+Gi", f"{row['observed']} {row['required']}")]
    assert sizes[0] == size(claim["requests"]["storage"])
    assert sizes[1] >= sizes[0] + plan_of(folder)["weights"]["bytes"]
    assert f"{sizes[1] / GIB}Gi" in row["fix"]
    assert f"persistentvolumeclaim/{name}-models" in row["fix"]


def test_a_plan_that_no_config_map_holds_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n" + "A" * 1_000_000)
    variables = f"{IMAGE}kimi_ca_bundle: {tmp_path}/ca.pem\n"
    assert render("reference-002", tmp_path / "out", variables=variables) == 2
    assert "no ConfigMap holds" in " ".join(capfd.readouterr().err.split())


# --- text from elsewhere

HOSTILE = 'x\n  hostPID: true\n# "}]: ${HOME} {{ 1 }} \x1b[2J \u202e'


def undigested(rows: Any) -> Any:
    """Take the digest out of the names of ConfigMaps: a plan with other findings has another."""
    return json.loads(re.sub(r"-plan-[0-9a-f]{8}", "-plan", json.dumps(rows)))


def test_names_in_facts_stay_data(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A vendor's facts name the machine, its GPUs and its system as they like."""
    facts = json.loads(LAB.read_text())
    variables = (
        "kimi_kubernetes_image: localhost/kimi:lab\nkimi_model: kimi-k2-lab\n"
        "kimi_weights_source: file:///srv/kimi/source\n"
    )
    tame = tmp_path / "tame.json"
    tame.write_text(json.dumps(facts))
    facts["host"]["hostname"] = HOSTILE
    facts["host"]["os"]["name"] = HOSTILE
    facts["cpu"]["model"] = HOSTILE
    wild = tmp_path / "wild.json"
    wild.write_text(json.dumps(facts))
    assert render(str(tame), tmp_path / "a", variables=variables) == 0
    assert render(str(wild), tmp_path / "b", variables=variables) == 0
    said = capfd.readouterr()
    tame_rows, wild_rows = objects(tmp_path / "a"), objects(tmp_path / "b")
    for row in (*tame_rows, *wild_rows):
        for template in templates(row):
            template["metadata"].get("annotations", {}).pop("kimi-prov.dev/plan-digest", None)
    assert undigested(wild_rows) == undigested(tame_rows)
    for name, content in read(tmp_path / "b").items():
        assert b"\x1b" not in content, name
        assert "\u202e".encode() not in content, name
    assert "\x1b" not in said.err + said.out


def test_a_hostile_target_name_stays_a_comment(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.yml"
    text = (SPECS / "reference-002.yml").read_text()
    sheet.write_text(text.replace("name: reference-002", f"name: {json.dumps(HOSTILE)}"))
    code = render(str(sheet), tmp_path / "out", variables=IMAGE)
    if code == 2:
        return  # a name that the sheet's reader takes for none
    assert render("reference-002", tmp_path / "tame", variables=IMAGE) == 0
    for name, content in read(tmp_path / "out").items():
        if name.endswith(".yaml") and name != "statefulset.yaml":
            tame = (tmp_path / "tame" / name).read_text()
            assert undigested(loaded(content.decode())) == undigested(loaded(tame)), name


# --- the command


def test_the_command_fits_a_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert render("quote-2x-8x-h100", tmp_path / "out") == 0
    lines = capfd.readouterr().err.replace(str(tmp_path), "").splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert lines[-1].startswith("next:  kimi-prov apply ")


def test_options_win_over_the_file(tmp_path: Path) -> None:
    words = ("--name", "other", "--namespace", "place", "--image", "registry.example.com/x:2")
    words += ("--storage-class", "slow", "--hostname", "a.example.com", "--ingress-class", "nginx")
    assert render("reference-002", tmp_path / "out", *words, variables=IMAGE) == 0
    spec = one(tmp_path / "out", "StatefulSet", "other")["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "registry.example.com/x:2"
    claim = one(tmp_path / "out", "PersistentVolumeClaim", "other-models")["spec"]
    assert claim["storageClassName"] == "slow"
    assert one(tmp_path / "out", "Ingress", "other")["spec"]["rules"][0]["host"] == "a.example.com"
    assert 'namespace: "place"' in (tmp_path / "out" / "kustomization.yaml").read_text()


def test_an_option_that_is_wrong_is_named_as_it_was_given(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert render("reference-002", tmp_path / "out", "--name", "A", variables=IMAGE) == 2
    assert "--name: kimi_kubernetes_name: expected" in " ".join(capfd.readouterr().err.split())


def test_a_target_and_an_inventory_exclude_each_other(tmp_path: Path) -> None:
    out = ("--image", "x", "--output", str(tmp_path / "out"))
    assert run("render", "kubernetes", *out) == 2
    sheet = str(SPECS / "reference-002.yml")
    assert run("render", "kubernetes", sheet, "--inventory", "inventories/lab", *out) == 2
