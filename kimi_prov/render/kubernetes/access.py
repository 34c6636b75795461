"""Access: volumes, nodes, capabilities, and the API from outside the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan.service import WebUiPlan
    from kimi_prov.planner.settings.parsing import Settings

# An answer streams for minutes, and a chat may carry images.
_TIMEOUT_S = 3600
_UPLOAD = "100m"
# Controllers as an IngressClass names them; HAProxy's chart adds the class. Other controllers for
# nginx and HAProxy read other annotations.
_NGINX, _HAPROXY = "k8s.io/ingress-nginx", "haproxy.org/ingress-controller"
_CONTROLLERS = {"nginx": _NGINX, "haproxy": _HAPROXY}
_WEB_IMAGE = "ghcr.io/open-webui/open-webui"


def choose_mode(settings: Settings, hosts: int) -> str:
    """Return the access mode of the weights' volume."""
    if settings.kubernetes_access_mode != "auto":
        return settings.kubernetes_access_mode
    return "ReadWriteMany" if hosts > 1 else "ReadWriteOnce"


def list_tolerations(settings: Settings, gpus: int) -> list[tuple[str, str]]:
    """List the taints that the pods tolerate: key and effect."""
    tolerations = dict(settings.kubernetes_tolerations)
    if gpus:
        tolerations = {settings.kubernetes_gpu_resource: "NoSchedule", **tolerations}
    return list(tolerations.items())


def find_controller(settings: Settings) -> str | None:
    """Return the Ingress controller that the class's name suggests; None for an unknown one."""
    name = settings.kubernetes_ingress_class or ""
    return next((controller for word, controller in _CONTROLLERS.items() if word in name), None)


def make_ingress_annotations(settings: Settings, *, tls: bool) -> dict[str, str] | None:
    """Return the Ingress annotations for a controller; None for an unknown one.

    `tls`: the pods speak it.
    """
    assumed = find_controller(settings)
    if assumed == _NGINX:
        prefix = "nginx.ingress.kubernetes.io"
        result = {
            f"{prefix}/proxy-read-timeout": str(_TIMEOUT_S),
            f"{prefix}/proxy-buffering": "off",
            f"{prefix}/proxy-body-size": _UPLOAD,
        }
        if settings.allowed_networks:
            result[f"{prefix}/whitelist-source-range"] = ",".join(settings.allowed_networks)
        return {**result, **({f"{prefix}/backend-protocol": "HTTPS"} if tls else {})}
    if assumed == _HAPROXY:
        result = {"haproxy.org/timeout-server": f"{_TIMEOUT_S}s"}
        if settings.allowed_networks:
            result["haproxy.org/allow-list"] = ",".join(settings.allowed_networks)
        return {**result, **({"haproxy.org/server-ssl": "true"} if tls else {})}
    return None


def make_certificate_values(settings: Settings) -> dict[str, Any]:
    """Return what the templates say of certificates: who signs them, and in which Secrets they are.

    Without cert-manager one certificate has all names. With it the public authority signs the host
    name alone, and another one the name inside the cluster.
    """
    name, namespace = settings.kubernetes_name, settings.kubernetes_namespace
    public = _split_issuer(settings.kubernetes_issuer)
    internal = _split_issuer(settings.kubernetes_internal_issuer)
    managed = bool(public or internal)
    own = {"kind": "Issuer", "name": f"{name}-authority"}
    outside = settings.kubernetes_hostname
    return {
        "managed": managed,
        "public_issuer": public,
        "internal_issuer": internal or own,
        "own_authority": managed and not internal,
        "internal_names": [
            name,
            *([f"{name}.{namespace}.svc"] if namespace else []),
            # An authority of the site may refuse it.
            *([] if internal else ["localhost"]),
        ],
        "ingress_secret": f"{name}-ingress-tls" if managed else f"{name}-tls",
        # Without access from outside the certificate is for the Service's name.
        "server_name": name if managed else outside or name,
    }


def _split_issuer(text: str | None) -> dict[str, str] | None:
    if not text:
        return None
    kind, _, name = text.partition("/")
    return {"kind": kind, "name": name}


# Of a forwarded port on the own computer.
PAGE_URL = "http://localhost:8080"


def make_page_command(settings: Settings) -> str:
    """Return the command that brings the web UI to the own computer."""
    namespace = settings.kubernetes_namespace or "NAMESPACE"
    name = settings.kubernetes_name
    return f"kubectl port-forward service/{name}-web 8080:8080 --namespace {namespace}"


def name_web_image(web: WebUiPlan, settings: Settings) -> str:
    """Return the name of the web UI's image."""
    return settings.kubernetes_web_image or f"{_WEB_IMAGE}:v{web['version']}-slim"
