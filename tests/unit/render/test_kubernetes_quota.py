"""Quotas and ranges as a cluster prints them, and what is done about the least of a range."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from command_line import run

from kimi_prov.render.kubernetes.quota import read

SHEET = Path(__file__).resolve().parents[3] / "inventories" / "specs" / "quote-8x-h200.yml"
IMAGE = f"registry.example.com/kimi@sha256:{'a' * 64}"
QUOTA = {
    "metadata": {"name": "compute", "namespace": "ml"},
    "spec": {"hard": {"requests.nvidia.com/gpu": "4", "requests.storage": "100Gi"}},
    "status": {"used": {"requests.nvidia.com/gpu": "0"}},
}
DESCRIBED = """\
Name:                    compute
Namespace:               ml
Resource                 Used  Hard
--------                 ----  ----
requests.nvidia.com/gpu  0     4
requests.storage         0     100Gi


Name:       bounds
Namespace:  ml
Type        Resource  Min   Max  Default Request  Default Limit  Max Limit/Request Ratio
----        --------  ---   ---  ---------------  -------------  -----------------------
Container   cpu       500m  16   1                1              -
Container   memory    1Gi   -    -                -              -
"""


def render(tmp_path: Path, quota: str) -> tuple[int, str, Path]:
    file, output = tmp_path / "quota", tmp_path / "out"
    file.write_text(quota)
    words = ("--image", IMAGE, "--namespace", "ml", "--quota", file, "--output", output)
    done = run("render", "kubernetes", SHEET, *words)
    return done.returncode, " ".join((done.stdout + done.stderr).split()), output


@pytest.mark.parametrize(
    "quota",
    [
        yaml.safe_dump({"kind": "ResourceQuota", **QUOTA}),
        yaml.safe_dump({"kind": "List", "items": [{"kind": "ResourceQuota", **QUOTA}]}),
        yaml.safe_dump({"kind": "ResourceQuotaList", "items": [QUOTA]}),
        DESCRIBED,
    ],
    ids=["object", "list", "list of its own", "described"],
)
def test_every_form_in_which_a_cluster_prints_a_quota_is_read(tmp_path: Path, quota: str) -> None:
    code, said, _ = render(tmp_path, quota)
    assert code == 3
    assert "ResourceQuota compute: requests.nvidia.com/gpu: 4 needs: 8" in said
    assert "ResourceQuota compute: requests.storage: 100Gi" in said


def test_what_helps_is_said_of_what_is_too_small(tmp_path: Path) -> None:
    _, said, _ = render(tmp_path, yaml.safe_dump({"kind": "ResourceQuota", **QUOTA}))
    assert "as many GPUs" in said
    assert "kimi_kubernetes_cpus" not in said


def test_a_range_as_it_is_described_is_held_against(tmp_path: Path) -> None:
    code, said, _ = render(tmp_path, DESCRIBED)
    assert code == 3
    assert "LimitRange bounds: max of a Container: cpu: 16" in said
    assert "min of a Container" not in said


def test_the_least_of_a_range_is_what_small_containers_request(tmp_path: Path) -> None:
    bounds = {"type": "Container", "min": {"cpu": "500m", "memory": "1Gi"}}
    limit = {"kind": "LimitRange", "metadata": {"name": "r"}, "spec": {"limits": [bounds]}}
    code, said, output = render(tmp_path, yaml.safe_dump(limit))
    assert code == 0, said
    (pod,) = (
        row["spec"]["template"]["spec"]
        for row in yaml.safe_load_all((output / "statefulset.yaml").read_text())
        if row["kind"] == "StatefulSet"
    )
    (first,) = pod["initContainers"]
    assert first["resources"]["limits"] == first["resources"]["requests"]
    assert (first["resources"]["limits"]["cpu"], first["resources"]["limits"]["memory"]) == (
        "500m",
        "1024Mi",
    )


# `kubectl get resourcequota` of older and newer versions, and `kubectl describe namespace`.
TABLE = """\
NAME     AGE   REQUEST                                                   LIMIT
compute  18d   requests.nvidia.com/gpu: 2/4, requests.storage: 0/100Gi   limits.cpu: 0/1280
"""
NEWER_TABLE = """\
NAME     REQUEST                                                   LIMIT               AGE
compute  requests.nvidia.com/gpu: 2/4, requests.storage: 0/100Gi   limits.cpu: 0/1280  18d
"""
NAMESPACE = """\
Name:         ml
Labels:       kubernetes.io/metadata.name=ml
Annotations:  <none>
Status:       Active

Resource Quotas
  Name:                    compute
  Resource                 Used  Hard
  --------                 ---   ---
  requests.nvidia.com/gpu  0     4

Resource Limits
 Type       Resource  Min  Max  Default Request  Default Limit  Max Limit/Request Ratio
 ----       --------  ---  ---  ---------------  -------------  -----------------------
 Container  cpu       -    2    100m             500m           -
"""
CPUS = {
    "max": {"cpu": "2"},
    "defaultRequest": {"cpu": "100m"},
    "default": {"cpu": "500m"},
}
GPUS = {"requests.nvidia.com/gpu": "4"}
OPENSHIFT = {
    "kind": "ClusterResourceQuota",
    "metadata": {"name": "compute"},
    "spec": {"quota": {"hard": GPUS}, "selector": {"labels": {"matchLabels": {"team": "ml"}}}},
    "status": {"total": {"hard": GPUS, "used": {"requests.nvidia.com/gpu": "0"}}},
}
KUBEFLOW = {
    "kind": "Profile",
    "metadata": {"name": "ml"},
    "spec": {"owner": {"kind": "User"}, "resourceQuotaSpec": {"hard": GPUS}},
}


@pytest.mark.parametrize(
    "quota",
    [TABLE, NEWER_TABLE, NAMESPACE, yaml.safe_dump(OPENSHIFT), yaml.safe_dump(KUBEFLOW)],
    ids=["table", "newer table", "namespace", "openshift", "kubeflow"],
)
def test_a_quota_is_found_wherever_a_site_keeps_it(tmp_path: Path, quota: str) -> None:
    (tmp_path / "quota").write_text(quota)
    rows = read([tmp_path / "quota"], "ml")
    assert rows[0]["spec"]["hard"]["requests.nvidia.com/gpu"] == "4"
    ranges = [row["spec"]["limits"] for row in rows if row["kind"] == "LimitRange"]
    assert bool(ranges) == (quota == NAMESPACE)
    assert ranges in ([], [[{"type": "Container", **CPUS}]])


def test_another_kind_of_object_is_named(tmp_path: Path) -> None:
    code, said, _ = render(tmp_path, "kind: ClusterQueue\nmetadata: {name: cq}\n")
    assert code == 2
    assert "but ClusterQueue" in said


def test_limits_of_a_device_are_counted_by_no_quota(tmp_path: Path) -> None:
    """NVIDIA/k8s-device-plugin#211: Kubernetes counts requests alone; HAMi counts these."""
    hard = {"limits.nvidia.com/gpu": "1", "requests.nvidia.com/gpu": "8"}
    quota = {"kind": "ResourceQuota", "metadata": {"name": "gpu"}, "spec": {"hard": hard}}
    code, said, _ = render(tmp_path, yaml.safe_dump(quota))
    assert code == 0
    assert "limits.nvidia.com/gpu: 1 needs: 8" in said
    assert "HAMi" in said


def test_no_range_gives_gpus_to_the_containers_beside_the_engine(tmp_path: Path) -> None:
    """A default of a range is for each container that names none, so each names it."""
    bounds = {"type": "Container", "default": {"nvidia.com/gpu": "1"}, "max": {"amd.com/gpu": "8"}}
    limit = {"kind": "LimitRange", "metadata": {"name": "r"}, "spec": {"limits": [bounds]}}
    code, said, output = render(tmp_path, yaml.safe_dump(limit))
    assert code == 0, said
    objects = [
        row
        for path in output.glob("*.yaml")
        for row in yaml.safe_load_all(path.read_text())
        if row and row["kind"] in ("StatefulSet", "Job")
    ]
    pods = [row["spec"]["template"]["spec"] for row in objects]
    parts = [part for pod in pods for part in pod["containers"] + pod.get("initContainers", [])]
    gpus = {part["name"]: part["resources"]["limits"]["nvidia.com/gpu"] for part in parts}
    assert gpus == {"engine": "8", "weights": "0", "fetch": "0"}
    assert {part["resources"]["limits"]["amd.com/gpu"] for part in parts} == {"0"}


def test_a_least_of_gpus_for_each_container_is_the_administrators_to_remove(tmp_path: Path) -> None:
    bounds = {"type": "Container", "min": {"nvidia.com/gpu": "1"}}
    limit = {"kind": "LimitRange", "metadata": {"name": "r"}, "spec": {"limits": [bounds]}}
    code, said, _ = render(tmp_path, yaml.safe_dump(limit))
    assert code == 3
    assert "remove this minimum" in said


def test_a_quota_is_judged_also_where_no_image_has_the_plugin(tmp_path: Path) -> None:
    file = tmp_path / "quota"
    file.write_text(yaml.safe_dump({"kind": "ResourceQuota", **QUOTA}))
    words = ("--image", IMAGE, "--quota", file, "--output", tmp_path / "out")
    done = run("render", "kubernetes", SHEET.with_name("quote-xeon-6980p.yml"), *words)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 3
    assert "(kubernetes.experts)" in said
    assert "ResourceQuota compute: requests.storage: 100Gi" in said
