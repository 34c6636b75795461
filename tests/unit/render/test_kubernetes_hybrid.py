"""KTransformers in a pod: reference 000 as its owner applies it, and what kt-kernel needs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from kubernetes_kinds import (
    VERSIONS,
    beyond_restricted,
    check_schema,
    not_guaranteed,
    objects,
    one,
    size,
    templates,
)
from kubernetes_render import plan_of, render

if TYPE_CHECKING:
    from collections.abc import Mapping

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "kubernetes" / "reference-000"
# As the document of reference 000 has them: names, class, labels, issuer, page, quota.
VARIABLES = """
kimi_weights_source: hf://moonshotai/Kimi-K2.5@0123456789abcdef0123456789abcdef01234567
kimi_kubernetes_image: registry.example.com/kimi-kt:0.7.2
kimi_kubernetes_name: kimi-serve
kimi_kubernetes_namespace: aic
kimi_kubernetes_storage_class: rook-ceph-rbd
kimi_kubernetes_node_selector: {accelerator: nvidia-h100}
kimi_kubernetes_issuer: ClusterIssuer/letsencrypt
kimi_kubernetes_web_hostname: aic-kimi.example.com
kimi_kubernetes_ingress_class: nginx
kimi_kubernetes_ingress_namespace: ingress-nginx
kimi_web_ui: true
"""
QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: default, namespace: aic}
spec:
  hard: {persistentvolumeclaims: "25", requests.cpu: 256000m, requests.memory: 819200Mi,
         requests.storage: 10240000Mi, limits.memory: 819200Mi}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("hybrid")
    (base / "quota.yaml").write_text(QUOTA)
    words = ("--quota", str(base / "quota.yaml"))
    assert render("reference-000", base / "out", *words, variables=VARIABLES) == 0
    return base / "out"


def containers(folder: Path) -> dict[str, dict[str, Any]]:
    spec = one(folder, "StatefulSet", "kimi-serve")["spec"]["template"]["spec"]
    return {part["name"]: part for part in spec["containers"]}


def finding(folder: Path, identity: str) -> Mapping[str, Any]:
    (row,) = [row for row in plan_of(folder)["findings"] if row["id"] == identity]
    return dict(row)


def test_the_files_are_the_golden_ones(folder: Path) -> None:
    kept = ("plan.json", "render.json")
    found = {path.name: path.read_text() for path in folder.iterdir() if path.name not in kept}
    if os.environ.get("KIMI_PROV_GOLDEN") == "write":
        shutil.rmtree(GOLDEN, ignore_errors=True)
        GOLDEN.mkdir(parents=True)
        for name, text in found.items():
            (GOLDEN / name).write_text(text)
    assert found == {path.name: path.read_text() for path in GOLDEN.iterdir()}
    closed_form.validate(plan_of(folder), "plan")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_as_its_schema_says(folder: Path, version: str) -> None:
    for row in objects(folder):
        check_schema(row, version)
        for template in templates(row):
            assert list(beyond_restricted(template["spec"])) == []
            assert list(not_guaranteed(template["spec"])) == []


def test_the_quota_of_its_namespace_passes_without_a_setting(folder: Path) -> None:
    assert finding(folder, "kubernetes.quota")["severity"] == "pass"
    limits = containers(folder)["engine"]["resources"]["limits"]
    plan = plan_of(folder)
    # 188 threads that spin, a process for each of two GPUs, and two cores beside them.
    assert size(limits["cpu"]) == plan["hybrid"]["threads"] + 4
    needed = sum(p["bytes"] for p in plan["memory"]["host_parts"] if p["kind"] != "system")
    assert needed < size(limits["memory"]) < 800 * 2**30
    assert limits["nvidia.com/gpu"] == "2"


def test_tls_is_the_proxys_and_the_keys_are_the_engines(folder: Path) -> None:
    found = containers(folder)
    assert set(found) == {"engine", "proxy"}
    engine, proxy = found["engine"], found["proxy"]
    assert engine["image"] == proxy["image"]
    assert (engine["args"], proxy["args"]) == (["serve"], ["proxy"])
    # The one port of the pod is the proxy's; the engine's is on the loopback.
    assert "ports" not in engine
    assert [row["name"] for row in proxy["ports"]] == ["api"]
    argv = plan_of(folder)["instances"][0]["argv"]
    assert argv[argv.index("-m") + 1] == "sglang.launch_server"
    spec = one(folder, "StatefulSet", "kimi-serve")["spec"]["template"]["spec"]
    volumes = {row["name"]: row for row in spec["volumes"]}

    def mounted(part: Mapping[str, Any], path: str) -> list[str]:
        names = [row["name"] for row in part["volumeMounts"] if row["mountPath"] == path]
        return [item["key"] for name in names for item in volumes[name]["secret"]["items"]]

    assert mounted(proxy, "/run/kimi/tls") == ["tls.crt", "tls.key"]
    assert mounted(engine, "/run/kimi/tls") == ["tls.crt"]
    assert mounted(engine, "/run/kimi/key") == ["api-key"]
    assert mounted(proxy, "/run/kimi/key") == []


def test_the_page_alone_is_seen_from_outside(folder: Path) -> None:
    """As the document has it: the API stays in the cluster."""
    rows = [row for row in objects(folder) if row["kind"] == "Ingress"]
    assert [row["metadata"]["name"] for row in rows] == ["kimi-serve-web"]
    certificates = [row["spec"] for row in objects(folder) if row["kind"] == "Certificate"]
    signed = {row["secretName"]: row["issuerRef"]["name"] for row in certificates}
    assert signed["kimi-serve-web-tls"] == "letsencrypt"
    assert signed["kimi-serve-tls"] == "kimi-serve-authority"
    (policy,) = [
        row
        for row in objects(folder)
        if row["kind"] == "NetworkPolicy" and row["metadata"]["name"] == "kimi-serve"
    ]
    assert "ingress-nginx" not in str(policy["spec"]["ingress"])


def test_what_kt_kernel_needs_is_said(folder: Path, tmp_path: Path) -> None:
    row = finding(folder, "kubernetes.kt_kernel")
    assert (row["severity"], "NUMA nodes 0-1" in row["observed"]) == ("info", True)
    assert "set_mempolicy" in row["required"]
    variables = f"{VARIABLES}kimi_kubernetes_cpus: 64\n"
    variables += "kimi_kubernetes_seccomp_profile: profiles/numa.json\n"
    assert render("reference-000", tmp_path / "less", variables=variables) == 0
    row = finding(tmp_path / "less", "kubernetes.kt_kernel")
    assert (row["severity"], "the time of 64 processors" in row["observed"]) == ("warning", True)
    assert "set_mempolicy" not in row["required"]


def test_converted_experts_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    variables = f"{VARIABLES}kimi_kt_method: AMXINT8\n"
    assert render("quote-epyc-9755-rtx-pro-6000", tmp_path / "out", variables=variables) == 3
    assert "(kubernetes.engine)" in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_metrics_without_rules_of_another_engine(tmp_path: Path) -> None:
    variables = f"{VARIABLES}kimi_kubernetes_monitoring_namespace: monitoring\n"
    assert render("reference-000", tmp_path / "out", variables=variables) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "servicemonitor.yaml" in names
    assert not names & {"rules.yaml", "dashboard.yaml"}
