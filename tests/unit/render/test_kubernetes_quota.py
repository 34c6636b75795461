"""Quotas and ranges as a cluster prints them, and what is done about the least of a range."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from command_line import run

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
