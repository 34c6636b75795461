"""Findings about the ways to a model in a cluster: host names, certificates, who is let in.

Decides: objects for a Kubernetes cluster (what access needs of the cluster).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.render.kubernetes import access

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings


def check_access(plan: MachinePlan, settings: Settings, findings: Findings) -> None:
    """Report how clients reach the API, who signs its certificates, and who may come."""
    _check_names(settings, findings)
    _check_issuers(settings, findings)
    _check_policies(plan, settings, findings)


def _find_wrong_access(settings: Settings) -> str | None:
    """Say what does not go together of host names and classes."""
    name, class_ = settings.kubernetes_hostname, settings.kubernetes_ingress_class
    gateway, page = settings.kubernetes_gateway_class, settings.kubernetes_web_hostname
    if class_ and gateway:
        return "both an Ingress and a Gateway are wished for"
    if (name or page) and not (class_ or gateway):
        return f"the host name {name or page}, and no class"
    if (class_ or gateway) and not (name or page):
        return f"the class {class_ or gateway}, and no host name"
    if page and not settings.web_ui:
        return f"the host name {page} of the page, and no page (kimi_web_ui)"
    return None


def _check_names(settings: Settings, findings: Findings) -> None:
    """Report how clients reach the API, and mistakes in the settings for that."""
    class_, gateway = settings.kubernetes_ingress_class, settings.kubernetes_gateway_class
    hosts = [settings.kubernetes_hostname, settings.kubernetes_web_hostname]
    name = " and https://".join(host for host in hosts if host)
    hint = "set kimi_kubernetes_hostname and one of kimi_kubernetes_ingress_class and "
    hint += "kimi_kubernetes_gateway_class, or none of the three"
    wrong = _find_wrong_access(settings)
    if wrong:
        findings.add(
            "kubernetes.ingress",
            severity="blocker",
            observed=wrong,
            required="a host name and a class",
            fix=hint,
        )
    elif class_:
        known = access.find_controller(settings)
        findings.add(
            "kubernetes.ingress",
            severity="info" if known else "warning",
            observed=f"https://{name} by an Ingress of class {class_}"
            + ("" if known else ", whose controller is not known here"),
            required=f"{known}, which the annotations are for"
            if known
            else "annotations for its controller: the pods speak TLS and answer slowly",
            fix=f"kubectl get ingressclass {class_} -o 'jsonpath={{.spec.controller}}'; "
            f"{'for another change' if known else 'add'} the annotations in ingress.yaml",
        )
    elif gateway:
        findings.add(
            "kubernetes.ingress",
            severity="info",
            observed=f"https://{name} by a Gateway of class {gateway}",
            required="the controller of that class"
            + (", with BackendTLSPolicy v1" if settings.kubernetes_tls else ""),
            fix=f"kubectl get gatewayclass {gateway}; kubectl explain backendtlspolicy",
        )
    else:
        findings.add(
            "kubernetes.ingress",
            severity="info",
            observed="the API is reached in the cluster, and by kimi-prov connect DIR",
            required="nothing more",
            fix=hint,
        )
    if not settings.kubernetes_tls:
        findings.add(
            "kubernetes.tls",
            observed="kimi_kubernetes_tls: false",
            required="TLS up to the pods",
            fix="remove kimi_kubernetes_tls and make the Secret, as README.md says",
        )


def _check_issuers(settings: Settings, findings: Findings) -> None:
    """Report who signs the certificates, where cert-manager is to do it."""
    public, internal = settings.kubernetes_issuer, settings.kubernetes_internal_issuer
    if not (public or internal):
        return
    own = "an authority that the folder brings"
    inside = internal or own
    if not settings.kubernetes_tls:
        inside = "nobody: kimi_kubernetes_tls is false"
    names = [settings.kubernetes_hostname, settings.kubernetes_web_hostname]
    hosts = [name for name in names if name]
    outside = f"{public or 'nobody'} signs {' and '.join(hosts)}; " if hosts else ""
    issuers = " ".join(dict.fromkeys(text.lower() for text in (public, internal) if text))
    findings.add(
        "kubernetes.issuer",
        severity="warning" if hosts and not public else "info",
        observed=f"{outside}inside the cluster signs {inside}",
        required="cert-manager with these issuers"
        + ("" if public or not hosts else "; the Secret of the host name, which you make"),
        fix=f"kubectl get {issuers}  says whether they are ready; kubectl get certificate  what is "
        "issued, once the folder is applied",
    )


def _check_policies(plan: MachinePlan, settings: Settings, findings: Findings) -> None:
    """Report which clients the NetworkPolicy and the controller let in."""
    class_, gateway = settings.kubernetes_ingress_class, settings.kubernetes_gateway_class
    # Pods do not see a client's address: only the controller can limit clients by it.
    if (gateway or (class_ and not access.find_controller(settings))) and settings.allowed_networks:
        findings.add(
            "kubernetes.ingress",
            severity="warning",
            wording="networks",
            observed=f"class {class_ or gateway} does not get kimi_allowed_networks",
            required=f"a policy of its controller for {', '.join(settings.allowed_networks)}",
            fix="add to the folder the controller's own setting for clients' networks; the "
            "NetworkPolicy sees the controller alone",
        )
    if (class_ or gateway) and not settings.kubernetes_ingress_namespace:
        own = f"gateway.networking.k8s.io/gateway-name={settings.kubernetes_name}"
        findings.add(
            "kubernetes.network_policy",
            wording="controller",
            severity="warning",
            observed="kimi_kubernetes_ingress_namespace not set"
            + (f"; pods of this namespace with the label {own} alone" if gateway else ""),
            required=f"the namespace of the pods of class {class_ or gateway}; their network in "
            "kimi_allowed_networks where they are on the host's",
            fix=f"kubectl get pods -A{f' -l {own}' if gateway else ''}  shows where they run; set "
            "kimi_kubernetes_ingress_namespace",
        )
    several = plan["parallel"]["hosts"] > 1
    findings.add(
        "kubernetes.network_policy",
        severity="warning" if several else "info",
        observed="not looked at"
        + ("; between the ranks are vLLM's own ports, which ask for no key" if several else ""),
        required="a network plugin that enforces NetworkPolicy",
        fix="kubectl get pods -n kube-system  shows the plugin; try it: a pod without the label "
        "kimi-prov.dev/client must not reach the API",
    )
