"""Findings about a model that is served by pods of a Kubernetes cluster, without root."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

DEFINITIONS = (
    Definition(
        "kubernetes.engine",
        title="{engine} is not served by a pod with converted experts",
        severities=("blocker",),
        source="a unit of a machine's own converts them, for its processors and pools",
        remedy="setting",
    ),
    Definition(
        "kubernetes.kt_kernel",
        title="kt-kernel's threads and memory need the node's cores and NUMA nodes",
        severities=("warning", "info"),
        source="its threads spin, each bound to a core; it binds memory by set_mempolicy, which "
        "containerd's seccomp profile keeps for CAP_SYS_NICE, and goes on without "
        "(kt-kernel/cpu_backend/worker_pool.h); it fails where a node is hidden "
        "(ktransformers#1570), which the pod refuses before the start",
        remedy="setting",
        concerns="deployment",
        titles={"warning": "kt-kernel gets fewer processors than it was planned with"},
    ),
    Definition(
        "kubernetes.experts",
        title="Experts in kt-kernel are not served by a pod",
        severities=("blocker",),
        source="kt-kernel binds its memory strictly to NUMA nodes by mbind and set_mempolicy, "
        "which containerd's seccomp profile keeps for CAP_SYS_NICE, and fails where the CPU set of "
        "a pod hides a node (ktransformers#1570)",
        remedy="setting",
        titles={"plugin": "No image has the plugin by which vLLM serves INT4 experts without GPUs"},
    ),
    Definition(
        "kubernetes.engine_lock",
        title="No packages are pinned for this engine: no image can be built",
        severities=("blocker",),
        source="the image is built from the lock files alone",
        remedy="catalogue",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.source",
        title="A pod does not see the folder that the weights come from",
        severities=("blocker",),
        source="a pod has the volume of the weights at /srv/kimi, and no folder of its node",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.room",
        title="A pod asks for more than a node has, or has less than the engine needs",
        severities=("blocker",),
        source="a pod that no node holds stays Pending; one with too little memory is killed",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.quota",
        title="What a quota of the namespace leaves",
        severities=("blocker", "warning", "info", "pass"),
        source="the API server refuses objects that go beyond a ResourceQuota or a LimitRange",
        remedy="setting",
        concerns="deployment",
        titles={
            "blocker": "A quota of the namespace is too small",
            "warning": "A quota of the namespace is taken in part by what runs there",
            "info": "The namespace may have quotas that nobody has looked at",
            "pass": "The quotas of the namespace leave room",
            "uncounted": "A quota of the namespace counts only for a scheduler beside Kubernetes",
        },
    ),
    Definition(
        "kubernetes.access_mode",
        title="Pods on several nodes need a volume that several nodes mount",
        severities=("blocker",),
        source="a ReadWriteOnce volume is mounted by one node alone",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.ingress",
        title="How clients outside the cluster reach the API",
        severities=("blocker", "warning", "info"),
        source="an Ingress or a Gateway has a class and a host name; an Ingress says by an "
        "annotation of its controller's that the pods speak TLS, and from where clients may come",
        remedy="setting",
        concerns="deployment",
        titles={"networks": "From outside the API is open to every network"},
    ),
    Definition(
        "kubernetes.tls",
        title="The key and the chats cross the cluster's network in clear",
        severities=("warning",),
        source="kimi_kubernetes_tls is false",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.memory",
        title="What a pod asks for",
        severities=("info",),
        source="requests equal limits; a memory-backed volume counts against the limit, and so do "
        "files in the page cache, which give way",
        remedy="none",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.image",
        title="The image has to hold the planned engine",
        severities=("info",),
        source="its labels dev.kimi-prov.engine, .engine-version and .lock-sha256 name what it "
        "was built from",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.stock_image",
        title="The engine's published image has not what the pods run",
        severities=("blocker",),
        source="the image's own start takes other arguments, asks for no key, and checks neither "
        "weights nor limits; its packages are not those of the plan's lock",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.issuer",
        title="cert-manager makes the certificates",
        severities=("warning", "info"),
        source="a public authority signs no name inside a cluster; the folder's own one signs in "
        "its namespace alone, and clients there trust ca.crt of the Secret",
        remedy="software",
        concerns="deployment",
        titles={"warning": "cert-manager makes only the certificate inside the cluster"},
    ),
    Definition(
        "kubernetes.page",
        title="The page has no host name: it is reached by a forwarded port",
        severities=("info",),
        source="without kimi_kubernetes_web_hostname no Ingress and no Gateway leads to it",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.device_plugin",
        title="The nodes need a device plugin for GPUs",
        severities=("info",),
        source="a pod gets GPUs by a resource that a device plugin announces",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.driver",
        title="The driver of the nodes is the administrator's",
        severities=("blocker", "warning", "info"),
        source="a container uses the driver of its node",
        remedy="software",
        concerns="deployment",
        titles={"blocker": "The driver of the nodes is too old for the engine"},
    ),
    Definition(
        "kubernetes.cpu_manager",
        title="The kubelet of the nodes has to give processors of its own to a pod",
        severities=("info",),
        source="the default policy none moves a pod over all processors; static gives whole ones "
        "to a Guaranteed pod that asks for whole ones",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.memory_manager",
        title="The kubelet of the nodes may keep a pod's memory where its processors are",
        severities=("info",),
        source="the Memory Manager with policy Static pins a Guaranteed pod to NUMA nodes",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.topology_manager",
        title="A pod over several NUMA nodes fails under single-numa-node",
        severities=("info",),
        source="with that policy the kubelet refuses it (TopologyAffinityError)",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.numa",
        title="The engine does not place memory on NUMA nodes",
        severities=("info",),
        source="containerd's seccomp profile (contrib/seccomp) keeps mbind and set_mempolicy for "
        "CAP_SYS_NICE, which the restricted standard forbids to add; CRI-O's allows them, and so "
        "may a profile of the nodes",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.tuning",
        title="Settings of the kernel are the administrator's",
        severities=("info",),
        source="sysctl, huge pages and the frequency governor are of the node, and a pod's limits "
        "of the container runtime",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.storage",
        title="The storage class decides how long a start takes",
        severities=("info",),
        source="each start reads all weights from the volume, unless they are in the page cache",
        remedy="setting",
        concerns="deployment",
        titles={"revision": "The volume has room for one revision of the weights"},
    ),
    Definition(
        "kubernetes.lws",
        title="Pods on several nodes need LeaderWorkerSet",
        severities=("info",),
        source="a group of ranks starts and restarts as a whole; Kubernetes itself has no such "
        "object",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.rdma",
        title="Network cards of the nodes pin memory",
        severities=("warning", "info"),
        source="without a resource of the network cards a pod has none of them; a capability that "
        "is added does not reach a process of another user than root (kubernetes#56374), so that "
        "the limit of locked memory counts",
        remedy="setting",
        concerns="deployment",
        titles={"warning": "Between nodes the GPUs speak over the pods' network"},
    ),
    Definition(
        "kubernetes.network_policy",
        title="NetworkPolicies guard the port where the network plugin enforces them",
        severities=("warning", "info"),
        source="a network plugin without them lets every pod of the cluster in; what the ranks of "
        "a group say to each other asks for no key; with them a controller in a namespace that is "
        "not named does not reach the pods",
        remedy="software",
        concerns="deployment",
        titles={"controller": "The NetworkPolicy may shut the Ingress or Gateway out"},
    ),
    Definition(
        "kubernetes.pod_security",
        title="The pods are within the restricted Pod Security Standard",
        severities=("info",),
        source="kubernetes.io/docs/concepts/security/pod-security-standards",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.monitoring",
        title="Monitoring needs the Prometheus operator",
        severities=("info",),
        source="ServiceMonitor and PrometheusRule are its kinds",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.web",
        title="The page runs from an image of its maker's",
        severities=("info",),
        source="it is not built from this project's lock files",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.settings",
        title="Settings that have no effect in a pod",
        severities=("info",),
        source="they are about what root does on a machine of one's own",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "kubernetes.proven",
        title="No cluster has scheduled these objects",
        severities=("info",),
        source="they were held against the schemas of Kubernetes and of the other kinds, and built "
        "by kubectl",
        remedy="none",
        concerns="deployment",
    ),
)
