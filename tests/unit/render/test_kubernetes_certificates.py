"""Certificates by cert-manager: whose names they have, who signs them, who trusts whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kubernetes_kinds import VERSIONS, check_schema, objects, one
from kubernetes_render import IMAGE, plan_of, render

if TYPE_CHECKING:
    from pathlib import Path

PUBLIC = f"""{IMAGE}
kimi_kubernetes_namespace: aic
kimi_kubernetes_issuer: ClusterIssuer/letsencrypt
kimi_kubernetes_hostname: kimi.example.com
kimi_kubernetes_web_hostname: chat.example.com
kimi_kubernetes_ingress_class: nginx
kimi_kubernetes_monitoring_namespace: monitoring
kimi_web_ui: true
"""
LETSENCRYPT = {"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "letsencrypt"}


def certificates(folder: Path) -> dict[str, dict[str, Any]]:
    rows = [row for row in objects(folder) if row["kind"] == "Certificate"]
    return {row["spec"]["secretName"]: row["spec"] for row in rows}


def test_each_name_is_signed_by_who_can(tmp_path: Path) -> None:
    assert render("reference-002", tmp_path / "out", variables=PUBLIC) == 0
    found = certificates(tmp_path / "out")
    assert found["kimi-ingress-tls"]["dnsNames"] == ["kimi.example.com"]
    assert found["kimi-web-tls"]["dnsNames"] == ["chat.example.com"]
    assert found["kimi-ingress-tls"]["issuerRef"] == LETSENCRYPT
    assert found["kimi-web-tls"]["issuerRef"] == LETSENCRYPT
    # No public authority signs these.
    assert found["kimi-tls"]["dnsNames"] == ["kimi", "kimi.aic.svc", "localhost"]
    own = {"group": "cert-manager.io", "kind": "Issuer", "name": "kimi-authority"}
    assert found["kimi-tls"]["issuerRef"] == own
    assert one(tmp_path / "out", "Issuer", "kimi-authority")["spec"]["ca"] == {
        "secretName": "kimi-authority"
    }
    assert found["kimi-authority"]["isCA"] is True
    assert found["kimi-authority"]["issuerRef"]["name"] == "kimi-self"
    assert one(tmp_path / "out", "Issuer", "kimi-self")["spec"] == {"selfSigned": {}}
    for row in objects(tmp_path / "out"):
        check_schema(row, VERSIONS[-1])


def test_every_secret_of_a_certificate_is_one_that_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert render("reference-002", folder, variables=PUBLIC) == 0
    made = set(certificates(folder))
    for name in ("kimi", "kimi-web"):
        (row,) = one(folder, "Ingress", name)["spec"]["tls"]
        assert row["secretName"] in made
    spec = one(folder, "StatefulSet")["spec"]["template"]["spec"]
    named = {row["secret"]["secretName"] for row in spec["volumes"] if "secret" in row}
    assert named - made == {"kimi-key"}
    # Who asks inside the cluster trusts the authority of the Secret, by a name that is in it.
    page = one(folder, "StatefulSet", "kimi-web")["spec"]["template"]["spec"]
    (ca,) = [row for row in page["volumes"] if row["name"] == "ca"]
    assert ca["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    (endpoint,) = one(folder, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["tlsConfig"]["ca"] == {"secret": {"name": "kimi-tls", "key": "ca.crt"}}
    assert endpoint["tlsConfig"]["serverName"] in certificates(folder)["kimi-tls"]["dnsNames"]
    readme = (folder / "README.md").read_text()
    assert "create secret tls" not in readme
    assert "openssl req" not in readme
    assert "kimi-ca" not in readme


def test_a_second_issuer_signs_the_name_inside(tmp_path: Path) -> None:
    variables = f"{PUBLIC}kimi_kubernetes_internal_issuer: Issuer/inside\n"
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    found = certificates(tmp_path / "out")
    assert found["kimi-tls"]["issuerRef"]["name"] == "inside"
    assert found["kimi-tls"]["dnsNames"] == ["kimi", "kimi.aic.svc"]
    assert not [row for row in objects(tmp_path / "out") if row["kind"] == "Issuer"]


def test_a_gateway_is_told_what_it_trusts(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    variables = PUBLIC.replace("ingress_class: nginx", "gateway_class: istio")
    assert render("reference-002", folder, variables=variables) == 0
    validation = one(folder, "BackendTLSPolicy")["spec"]["validation"]
    assert validation["hostname"] in certificates(folder)["kimi-tls"]["dnsNames"]
    listeners = one(folder, "Gateway")["spec"]["listeners"]
    refs = [row["tls"]["certificateRefs"][0]["name"] for row in listeners]
    assert refs == ["kimi-ingress-tls", "kimi-web-tls"]
    assert "create configmap kimi-ca" in (folder / "README.md").read_text()


def test_an_internal_issuer_alone_leaves_the_host_names_to_the_site(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    variables = PUBLIC.replace("kimi_kubernetes_issuer", "kimi_kubernetes_internal_issuer")
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    assert set(certificates(tmp_path / "out")) == {"kimi-tls"}
    assert "kubernetes.issuer" in capfd.readouterr().err
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "create secret tls kimi-ingress-tls" in readme
    assert "create secret tls kimi-web-tls" in readme
    (row,) = one(tmp_path / "out", "Ingress")["spec"]["tls"]
    assert row["secretName"] == "kimi-ingress-tls"


@pytest.mark.parametrize("value", ["letsencrypt", "clusterissuer/x", "Issuer/", "Issuer/a/b"])
def test_an_issuer_that_is_none_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], value: str
) -> None:
    variables = f"{IMAGE}kimi_kubernetes_issuer: {value}\n"
    assert render("reference-002", tmp_path / "out", variables=variables) == 2
    assert "ClusterIssuer/NAME or Issuer/NAME" in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize("host", ["", "kimi_kubernetes_hostname: a.b\n"])
def test_a_page_without_a_host_name_has_a_way(tmp_path: Path, host: str) -> None:
    variables = f"{IMAGE}kimi_kubernetes_namespace: aic\nkimi_web_ui: true\n{host}"
    variables += "kimi_kubernetes_ingress_class: nginx\n" if host else ""
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    rows = [r for r in plan_of(tmp_path / "out")["findings"] if r["id"] == "kubernetes.page"]
    line = "kubectl port-forward service/kimi-web 8080:8080 --namespace aic"
    assert line in rows[0]["fix"]
    assert line in (tmp_path / "out" / "README.md").read_text()
    (port,) = one(tmp_path / "out", "Service", "kimi-web")["spec"]["ports"]
    assert port["port"] == 8080
