"""Variables of an inventory: a Kubernetes cluster."""

from __future__ import annotations

from kimi_prov.planner.settings.definitions.variable import OFF, ON, Variable, define

_KUBERNETES = "In a Kubernetes cluster"

VARIABLES: tuple[Variable, ...] = (
    define(
        _KUBERNETES,
        "kubernetes_name",
        "object",
        "kimi",
        "kimi",
        "Name of the objects of `render kubernetes`, and prefix of Secrets and volumes. The "
        "variables of this group only count for that command.",
        most=36,
    ),
    define(
        _KUBERNETES,
        "kubernetes_namespace",
        "object",
        None,
        "kimi",
        "Namespace of the objects. Not set: kubectl's namespace when they are applied.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_image",
        "image",
        None,
        "registry.example.com/kimi:0.19.1",
        "The image with the engine, as the nodes pull it. `render kubernetes` needs it.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_image_pull_secret",
        "domain",
        None,
        "registry",
        "Secret by which the nodes pull the images. Not set: none.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_storage_class",
        "domain",
        None,
        "fast-nvme",
        "Storage class of the volumes. Not set: the cluster's default.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_access_mode",
        "choice",
        "auto",
        "ReadWriteMany",
        "Access mode of the weights' volume. auto: ReadWriteOnce for one pod, ReadWriteMany for "
        "several.",
        auto=True,
        choices=("ReadWriteOnce", "ReadWriteMany"),
    ),
    define(
        _KUBERNETES,
        "kubernetes_cache_volume",
        "switch",
        OFF,
        "true",
        "Size of a volume for what the engine compiles. Not set: it is compiled at each "
        "start. Only for one pod.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_node_selector",
        "labels",
        {},
        "{nvidia.com/gpu.product: NVIDIA-H200}",
        "Labels that the nodes must have.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_tolerations",
        "labels",
        {},
        "{dedicated: NoSchedule}",
        "Taints that the pods tolerate with any value: key and effect. That of "
        "kimi_kubernetes_gpu_resource is tolerated where there are GPUs.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_runtime_class",
        "domain",
        None,
        "nvidia",
        "Runtime class by which containers get GPUs, where the cluster's default has none.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_gpu_resource",
        "resource",
        "nvidia.com/gpu",
        "nvidia.com/gpu",
        "Resource by which the cluster counts GPUs.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_rdma_resource",
        "resource",
        None,
        "rdma/hca_shared_devices_a",
        "Resource of the network cards for several nodes. Not set: the GPUs of two nodes speak "
        "over the pods' network.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_cpus",
        "count",
        "auto",
        "96",
        "Logical processors of a pod. auto: what the engine keeps busy, at most the node's share "
        "for its GPUs.",
        auto=True,
        most=4096,
    ),
    define(
        _KUBERNETES,
        "kubernetes_memory_gib",
        "count",
        "auto",
        "640",
        "Memory of a pod in GiB with its /dev/shm. auto: what the plan needs, and room for the "
        "files that are read, if the node has it.",
        auto=True,
        most=1_048_576,
    ),
    define(
        _KUBERNETES,
        "kubernetes_seccomp_profile",
        "profile",
        None,
        "profiles/numa.json",
        "Seccomp profile on the nodes that allows mbind and set_mempolicy, below the kubelet's "
        "folder of profiles: the engine then places memory on NUMA nodes. Not set: the container "
        "runtime's own, and the engine does not.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_grace_s",
        "seconds",
        300,
        "600",
        "Seconds in which a pod has to end; answers may take a minute less.",
        most=86_400,
    ),
    define(
        _KUBERNETES,
        "kubernetes_tls",
        "switch",
        ON,
        "true",
        "The pods speak TLS with the certificate of the Secret NAME-tls. false: the key and the "
        "chats cross the cluster's network in clear.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_hostname",
        "domain",
        None,
        "kimi.example.com",
        "Name by which clients outside the cluster reach the API; kimi_kubernetes_ingress_class or "
        "kimi_kubernetes_gateway_class says how. Not set: only from inside the cluster.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_web_hostname",
        "domain",
        None,
        "chat.example.com",
        "Host name of the web UI. Not set: only reachable inside the cluster.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_ingress_class",
        "domain",
        None,
        "nginx",
        "Class of the Ingress.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_gateway_class",
        "domain",
        None,
        "istio",
        "Class of the Gateway, in place of an Ingress.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_issuer",
        "issuer",
        None,
        "ClusterIssuer/letsencrypt",
        "Issuer of cert-manager that signs the certificates of the two host names; the folder then "
        "has every certificate as an object. Not set: you make the Secrets of the certificates.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_internal_issuer",
        "issuer",
        None,
        "ClusterIssuer/internal",
        "Issuer of cert-manager that signs the name inside the cluster, which no public authority "
        "signs. Not set: with kimi_kubernetes_issuer the folder brings an authority of its own.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_ingress_namespace",
        "object",
        None,
        "ingress-nginx",
        "Namespace of the ingress controller's, or the gateway's, pods: they may reach the API.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_monitoring_namespace",
        "object",
        None,
        "monitoring",
        "Namespace of a Prometheus with its operator: ServiceMonitor, rules and dashboard are "
        "rendered, and its pods may read the metrics. Not set: none.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_stop_schedule",
        "schedule",
        None,
        "0 20 * * 1-5",
        "When the model is stopped, as cron has it: its GPUs are free then. Not set: never.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_start_schedule",
        "schedule",
        None,
        "0 7 * * 1-5",
        "When the model is started again, as cron has it. Not set: by hand.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_time_zone",
        "text",
        "Etc/UTC",
        "Europe/Vienna",
        "Time zone of the two schedules.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_kubectl_image",
        "image",
        "registry.k8s.io/kubectl:v1.34.1",
        "registry.example.com/kubectl:v1.34.1",
        "Image with kubectl, which the two schedules run.",
    ),
    define(
        _KUBERNETES,
        "kubernetes_web_image",
        "image",
        None,
        "registry.example.com/open-webui:0.12.4-slim",
        "Image of the web UI. Not set: Open WebUI's own, of the version in the catalogue.",
    ),
)
