"""Objects for a Kubernetes cluster, taken by kubectl itself."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubectl
import pytest
from kubernetes_kinds import VERSIONS, check_schema, loaded, objects, one, templates

from kimi_prov import cli
from kimi_prov.show.exit_handling import run_guarded

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
SPECS = ROOT / "inventories" / "specs"


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


def run(*words: str) -> int:
    return int(run_guarded(lambda: cli.cli.main(list(words), standalone_mode=False)))


def render(target: str, output: Path, *more: str, variables: str | None = None) -> int:
    file = output.parent / f"{Path(target).stem}.vars.yml"
    file.write_text(VARIABLES[target] if variables is None else variables)
    sheet = target if "/" in target else str(SPECS / f"{target}.yml")
    words = ("render", "kubernetes", sheet, "--vars", str(file), "--output", str(output))
    return run(*words, *more)


def plan_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return found


@pytest.fixture(scope="module", params=sorted(VARIABLES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("render") / str(request.param)
    assert render(str(request.param), output) == 0
    return output


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kubectl.unpack(tmp_path_factory.mktemp("kubectl"))


def template_of(folder: Path) -> dict[str, Any]:
    (found,) = templates(one(folder, *WORKLOADS[folder.name]))
    return found


# --- the folder


# --- what Kubernetes takes


@pytest.mark.parametrize("name", ["on", "null", "a" * 36])
def test_a_name_that_yaml_reads_otherwise_and_the_longest_one(
    tmp_path: Path, program: Path, name: str
) -> None:
    variables = VARIABLES["reference-002"].replace("models", "'123'")
    words = ("--name", name)
    assert render("reference-002", tmp_path / "out", *words, variables=variables) == 0
    for row in objects(tmp_path / "out"):
        check_schema(row, VERSIONS[-1])
        # A Job's name is a label of its pods, and a CronJob puts eleven signs behind its own.
        assert len(row["metadata"]["name"]) <= (52 if row["kind"] == "CronJob" else 63)
        for template in templates(row):
            assert template["metadata"]["labels"]["app.kubernetes.io/instance"] == name
    line = [str(program), "kustomize", str(tmp_path / "out")]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    rows = loaded(done.stdout)
    assert {row["metadata"]["namespace"] for row in rows} == {"123"}
    for row in rows:
        check_schema(row, VERSIONS[-1])


def test_kubectl_builds_the_folder(folder: Path, program: Path) -> None:
    line = [str(program), "kustomize", str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    rows = loaded(done.stdout)
    plans = [row for row in rows if row["kind"] == "ConfigMap" and "plan.json" in row["data"]]
    assert [json.loads(row["data"]["plan.json"]) for row in plans] == [plan_of(folder)] * 2
    assert len(rows) == len(objects(folder)) + 2
    wanted = "models" if folder.name == "reference-002" else None
    for row in rows:
        assert row["metadata"].get("namespace") == wanted, row["kind"]
        check_schema(row, VERSIONS[-1])
    names = [(row["kind"], row["metadata"]["name"]) for row in rows]
    assert len(names) == len(set(names))


def test_kubectl_itself_takes_the_objects(folder: Path, program: Path) -> None:
    """kubectl reads the built objects without a cluster; kinds of others it passes on."""
    line = [str(program), "kustomize", str(folder)]
    built = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout
    line = [str(program), "label", "--local", "-f", "-", "tried=yes", "-o", "name"]
    done = subprocess.run(
        line, input=built, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == len(objects(folder)) + 2


def test_what_an_object_names_is_there_or_is_made_by_hand(folder: Path, program: Path) -> None:
    """A Secret, ConfigMap, volume or account that is named is rendered, or README makes it."""
    line = [str(program), "kustomize", str(folder)]
    built = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = loaded(built)
    there = {(row["kind"], row["metadata"]["name"]) for row in rows}
    readme = (folder / "README.md").read_text()
    made = {
        *(("Secret", n) for n in re.findall(r"create secret (?:generic|tls) (\S+)", readme)),
        *(("ConfigMap", n) for n in re.findall(r"create configmap (\S+)", readme)),
        # The site's own: it names it.
        ("Secret", "registry"),
    }
    named = set(references(rows))
    assert len(named) >= 6
    assert named - there - made == set()
    assert {row for row in made if row not in named} <= {("Secret", "registry")}


def references(rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Give what objects name of others: kind and name."""
    for value in walked(rows):
        for key, kind, name in (
            ("secret", "Secret", "secretName"),
            ("configMap", "ConfigMap", "name"),
            ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
            ("secretKeyRef", "Secret", "name"),
            ("credentials", "Secret", "name"),
            ("service", "Service", "name"),
        ):
            if isinstance(value.get(key), dict):
                yield kind, value[key][name]
        for row in value.get("imagePullSecrets") or []:
            yield "Secret", row["name"]
        if "serviceAccountName" in value:
            yield "ServiceAccount", value["serviceAccountName"]
        if "secretName" in value and "hosts" in value:
            yield "Secret", value["secretName"]
        for key in ("certificateRefs", "caCertificateRefs", "targetRefs"):
            for row in value.get(key) or []:
                yield row["kind"], row["name"]
        for row in value.get("backendRefs") or []:
            yield "Service", row["name"]


def walked(value: Any) -> Iterator[dict[str, Any]]:
    """Give every mapping in it."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            yield from walked(inner)


# --- the engine's pod


def test_a_pod_that_waits_for_the_weights_ends_when_it_is_told_to(folder: Path) -> None:
    """The first process of a container ignores a signal that it does not handle itself."""
    (waits,) = template_of(folder)["spec"]["initContainers"]
    missing = {**os.environ, "VERIFIED": "/nowhere/.kimi-verified"}
    running = subprocess.Popen(waits["command"], env=missing, start_new_session=True)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    end = time.monotonic() + 20
    while not children.read_text().strip() and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGTERM)
    # Ended by the signal alone it would be -15, which the first process never is.
    assert running.wait(20) == 143


# --- what it fetches, who reaches it, when it runs


def test_kubectl_knows_how_the_schedule_and_the_readme_ask_it(folder: Path, program: Path) -> None:
    """The words are kubectl's: without a cluster it fails at the connection, not at them."""
    (job, *_) = (row for row in objects(folder) if row["kind"] == "CronJob")
    (container,) = templates(job)[0]["spec"]["containers"]
    line = [str(program), "--server=http://127.0.0.1:1", *container["args"]]
    line = [word for word in line if not word.startswith("--cache-dir")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "unknown" not in done.stderr


# --- monitoring


# --- the page
# --- quotas


# --- what is refused, and what is told


def test_a_bundle_of_certificates_travels_with_the_plan(tmp_path: Path, program: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nAA==\n")
    variables = f"{IMAGE}kimi_ca_bundle: {tmp_path}/ca.pem\n"
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    line = [str(program), "kustomize", str(tmp_path / "out")]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    found = [row for row in loaded(done.stdout) if "plan.json" in (row.get("data") or {})]
    assert len(found) == 2
    for row in found:
        assert row["data"]["ca-bundle.pem"] == (tmp_path / "ca.pem").read_text()


# --- text from elsewhere


# --- the command
