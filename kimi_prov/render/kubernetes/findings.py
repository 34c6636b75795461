"""The plan's findings that hold in a pod, and findings about what the cluster must have.

Decides: objects for a Kubernetes cluster (what the cluster must have).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths
from kimi_prov.contract.cpu_lists import format_list
from kimi_prov.contract.node_kinds import list_own_nodes
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.findings import Findings
from kimi_prov.render import planned
from kimi_prov.render.kubernetes import access, access_findings, images, quota
from kimi_prov.render.kubernetes import pod as pods
from kimi_prov.show.text.formats import describe_engine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.render.kubernetes.pod import Pod

_GIB = 1 << 30
# Settings that `render kubernetes` replaces, beside those that have no effect without root.
_WITHOUT_EFFECT: dict[str, Any] = {**planned.WITHOUT_EFFECT, "port": 8000, "web_port": 8443}
_INSTEAD = {
    "hf_token_file": "kubectl create secret generic NAME-hub --from-file=token=FILE",
    "bucket_credentials_file": "a role of the service account, and rclone in the image",
    "api_keys_file": "kubectl create secret generic NAME-key --from-file=api-key=FILE",
    "tls_cert_file": "kubectl create secret tls NAME-tls --cert=FILE --key=FILE",
    "web_admin_file": "kubectl create secret generic NAME-web, as README.md says",
}
# Findings about the web UI that hold wherever it runs; the pod's own /dev/shm has its finding.
_ALSO = ("web.licence",)
_OWN = frozenset({"memory.shm"})
_CONFIGZ = 'kubectl get --raw "/api/v1/nodes/NODE/proxy/configz"'


def adjust_settings(settings: Settings) -> Settings:
    """Return the settings as they count in a pod, where the image decides what is installed."""
    return replace(
        settings,
        **_WITHOUT_EFFECT,
        ram_disk="never",
        instances=1,
        ca_bundle=None,
        pip_index_url=None,
        pip_extra_index_urls=[],
        pip_find_links=None,
        torch_index_url=None,
    )


def select_findings(
    plan: MachinePlan,
    settings: Settings,
    facts: Facts,
    catalogue: Catalogue,
) -> list[Finding]:
    """Give the findings of a plan that pods serve, without those about quotas.

    `settings` are the site's own, as they were before `adjust_settings`.
    """
    findings = Findings()
    findings.extend(row for row in planned.select_true(plan) if row["id"] not in _OWN)
    findings.extend(row for row in plan["findings"] if row["id"] in _ALSO)
    _check_engine(plan, settings, findings, catalogue)
    _check_source(plan, findings)
    pod = pods.size_pod(plan, settings, facts)
    _check_space(plan, settings, facts, pod, findings)
    _check_nodes(plan, settings, facts, pod, findings)
    _check_storage(plan, settings, findings)
    if plan["hybrid"]:
        _check_kt_kernel(plan, settings, pod, findings)
    if plan["parallel"]["hosts"] > 1:
        _check_group(plan, settings, pod, findings)
    access_findings.check_access(plan, settings, findings)
    _check_security(settings, findings)
    _check_others(plan, settings, findings)
    _check_settings(settings, findings)
    findings.add(
        "kubernetes.proven",
        observed="no cluster has run what this version renders",
        required="kubectl apply --dry-run=server -k DIR, and a trial before others count on it",
        fix=None,
    )
    return findings.rows()


def check_quota(
    rows: Sequence[Mapping[str, Any]], demand: quota.Demand, namespace: str | None
) -> list[Finding]:
    """Compare the objects with quotas and ranges; `rows` is empty where no file was given."""
    findings = Findings()
    if not rows:
        namespace_name = namespace or "NAMESPACE"
        findings.add(
            "kubernetes.quota",
            severity="info",
            observed="no file of quotas was given",
            required="room for all objects",
            fix=f"kubectl get resourcequota,limitrange --namespace {namespace_name} -o yaml > "
            "quota.yaml, and render with  --quota quota.yaml",
        )
        return findings.rows()
    clashes = quota.find_clashes(rows, demand)
    for clash in clashes:
        findings.add(
            "kubernetes.quota",
            severity="blocker" if clash.grave else "warning",
            wording="uncounted" if clash.fix and not clash.grave else None,
            observed=f"{clash.where}: {clash.observed}",
            required=clash.required,
            fix=_suggest_fix(clash),
        )
    if not clashes:
        findings.add(
            "kubernetes.quota",
            severity="pass",
            observed=f"{len(rows)} quotas and ranges",
            required="room for all objects",
        )
    return findings.rows()


def _suggest_fix(clash: quota.Clash) -> str:
    """Return what helps with what is too small: not each of it is a setting."""
    if clash.fix:
        return clash.fix
    if not clash.grave:
        return "stop what runs there; the model's own objects are counted too while it runs"
    resource = clash.where.rpartition(": ")[2]
    if resource.endswith(("cpu", "memory")):
        return (
            "ask the administrator for more, or set kimi_kubernetes_cpus and "
            "kimi_kubernetes_memory_gib"
        )
    if "/" in resource and "storage" not in resource and not resource.startswith("count/"):
        return (
            "ask the administrator for as many GPUs; or render for a node with as many as there "
            "are (gpus of the sheet), if the model fits into them"
        )
    if "storage" in resource:
        return (
            "ask the administrator for more; or take a format with smaller weights: "
            "kimi_weights_format"
        )
    return "ask the administrator for more, or remove objects that nobody needs"


def _check_engine(
    plan: MachinePlan, settings: Settings, findings: Findings, catalogue: Catalogue
) -> None:
    engine, need = plan["engine"], plan["memory"]["host_ram_required_bytes"]
    if plan["conversion"] or plan["weights"]["converted"]:
        findings.add(
            "kubernetes.engine",
            names={"engine": "KTransformers"},
            observed=f"experts converted for {engine['name']}",
            required="experts in the format of the weights as they are published",
            fix="remove kimi_kt_method; or provision the machine itself: kimi-prov apply INVENTORY",
        )
    if engine["locks"] != [engine["lock"]]:
        # The engine needs a plugin of ours, which no image has.
        kt_kernel = plan["experts"] and plan["experts"]["by"] != "vllm"
        findings.add(
            "kubernetes.experts",
            wording=None if kt_kernel else "plugin",
            observed=f"{', '.join(engine['locks'][1:])}; {format_bytes(need)} of memory",
            required="an engine that serves the model without a plugin",
            fix="take nodes whose GPUs hold the weights, or provision the machine itself: "
            "kimi-prov apply INVENTORY",
        )
    named = describe_engine(engine)
    if settings.kubernetes_image and images.is_stock(settings.kubernetes_image):
        findings.add(
            "kubernetes.stock_image",
            observed=settings.kubernetes_image,
            required=f"an image with {images.ENTRY}, which checks, guards and starts {named}",
            fix=f"{images.make_commands(engine, 'TAG')[0]}  writes what one is built from; name "
            "the built one in --image",
        )
    if not engine["provisioned"]:
        findings.add(
            "kubernetes.engine_lock",
            observed=f"{named} for Python {engine['python_version']}",
            required="a lock file of the catalogue",
            fix=f"add {engine['lock']} to the locks of a catalogue of your own",
        )
        return
    findings.add(
        "kubernetes.image",
        observed="not looked at",
        required=f"{named}, from {engine['lock']} with SHA-256 {catalogue.locks[engine['lock']]}",
        fix=f"kimi-prov image {engine['name']}-{engine['variant']}-{engine['version']} --python "
        f"{engine['python_version']} --output FOLDER  writes what it is built from; skopeo inspect "
        "docker://IMAGE  shows the labels of one",
    )


def _check_source(plan: MachinePlan, findings: Findings) -> None:
    source = str(plan["weights"]["source"])
    if source.startswith("file://") and not source.startswith(f"file://{paths.ROOT}/"):
        findings.add(
            "kubernetes.source",
            observed=source,
            required=f"an address, or a folder of the volume: file://{paths.ROOT}/FOLDER",
            fix="copy the files into the volume, or name an address in kimi_weights_source",
        )


def _check_space(
    plan: MachinePlan,
    settings: Settings,
    facts: Facts,
    pod: Pod,
    findings: Findings,
) -> None:
    threads, node = pods.count_threads(facts), int(plan["memory"]["host_ram_available_bytes"])
    cpus, memory = pods.count_fetch_share(plan, settings, facts)
    job = ", beside {} of the fetching Job" if cpus else ""
    if pod.memory < pod.needed:
        findings.add(
            "kubernetes.room",
            observed=f"kimi_kubernetes_memory_gib: {pod.memory // _GIB}",
            required=f"{pod.needed // _GIB}: {format_bytes(pod.needed - pod.shm)} for the engine, "
            f"{format_bytes(pod.shm)} for /dev/shm",
            fix="raise or remove kimi_kubernetes_memory_gib",
        )
    if pod.memory + memory > node:
        findings.add(
            "kubernetes.room",
            observed=f"a node has {format_bytes(node)} of memory",
            required=f"{format_bytes(pod.memory)} for a pod{job.format(format_bytes(memory))}",
            fix="remove kimi_kubernetes_memory_gib, or take nodes with more memory",
        )
    if pod.cpus + cpus > threads:
        findings.add(
            "kubernetes.room",
            observed=f"a node has {threads} processors",
            required=f"kimi_kubernetes_cpus: {pod.cpus}{job.format(cpus)}",
            fix="lower or remove kimi_kubernetes_cpus",
        )
    cache = f", {format_bytes(pod.page_cache)} for files that are read" if pod.page_cache else ""
    gpus = f", {pod.gpus} x {settings.kubernetes_gpu_resource}" if pod.gpus else ""
    findings.add(
        "kubernetes.memory",
        observed=f"{pod.cpus} processors, {format_bytes(pod.memory)} of memory{gpus}",
        required=f"{format_bytes(pod.needed - pod.shm)} for the engine, {format_bytes(pod.shm)} "
        f"for /dev/shm{cache}",
        fix=None,
    )


def _check_kubelet(facts: Facts, pod: Pod, findings: Findings) -> None:
    """Say by which policies the kubelet has to give processors and memory."""
    findings.add(
        "kubernetes.cpu_manager",
        observed="not looked at",
        required="cpuManagerPolicy static and reservedSystemCPUs",
        fix=f"{_CONFIGZ}  has .kubeletconfig.cpuManagerPolicy; without it the model is served, "
        "more slowly",
    )
    nodes = len(list_own_nodes(facts["numa"]["nodes"]))
    if nodes > 1:
        findings.add(
            "kubernetes.memory_manager",
            observed=f"{nodes} NUMA nodes",
            required="memoryManagerPolicy None, or Static with reservedMemory",
            fix=f"{_CONFIGZ}  has .kubeletconfig.memoryManagerPolicy",
        )
        findings.add(
            "kubernetes.topology_manager",
            observed=f"{pod.cpus} processors"
            + (f" and {pod.gpus} GPUs" if pod.gpus else "")
            + f" over {len(facts['numa']['nodes'])} NUMA nodes",
            required="topologyManagerPolicy best-effort or restricted, with the option "
            "prefer-closest-numa-nodes; not single-numa-node",
            fix=f"{_CONFIGZ}  has .kubeletconfig.topologyManagerPolicy",
        )


def _check_nodes(
    plan: MachinePlan,
    settings: Settings,
    facts: Facts,
    pod: Pod,
    findings: Findings,
) -> None:
    """Say what the nodes' kubelet, driver and device plugin must be."""
    hosts = plan["parallel"]["hosts"]
    if pod.gpus:
        resource = settings.kubernetes_gpu_resource
        column = resource.replace(".", "\\.")
        findings.add(
            "kubernetes.device_plugin",
            observed="not looked at",
            required=f"{pod.gpus} x {resource} to give on "
            f"{'a node' if hosts == 1 else f'each of {hosts} nodes'}",
            fix="kubectl get nodes -o "
            f"'custom-columns=NODE:.metadata.name,GPUS:.status.allocatable.{column}'",
        )
    if (driver := planned.describe_driver(plan)) is not None:
        findings.add(
            "kubernetes.driver",
            severity=driver.severity,
            observed=driver.observed,
            required=driver.required,
            fix="kubectl get nodes -L nvidia.com/cuda.driver.major  shows it where GPU feature "
            f"discovery runs; ask the administrator for nodes with {driver.required}",
        )
    _check_kubelet(facts, pod, findings)
    if pods.is_memory_placed(plan) and settings.kubernetes_seccomp_profile is None:
        findings.add(
            "kubernetes.numa",
            observed="numactl and --numa-bind of the plan are left out",
            required="a seccomp profile on the nodes that allows mbind and set_mempolicy",
            fix="set kimi_kubernetes_seccomp_profile to its path below the kubelet's folder",
        )
    limits = ", ".join(f"{name} {value}" for name, value in plan["tuning"]["limits"].items())
    findings.add(
        "kubernetes.tuning",
        observed="nothing of it is set by a pod",
        required="; ".join([*planned.describe_tuning(plan), f"limits of a container: {limits}"]),
        fix="kubectl debug node/NODE -it --image=IMAGE -- sysctl -a  shows what a node has; the "
        "model is served without, more slowly",
    )


def _check_kt_kernel(plan: MachinePlan, settings: Settings, pod: Pod, findings: Findings) -> None:
    """Say what kt-kernel needs of the pod's node: processors, NUMA nodes, system calls."""
    hybrid = plan["hybrid"]
    assert hybrid is not None  # noqa: S101 - who calls has looked
    several, threads = hybrid["pools"] > 1, hybrid["threads"]
    short = pod.cpus < pods.count_used_cpus(plan, 1)
    placed = settings.kubernetes_seccomp_profile is not None
    nodes = f" over NUMA nodes {format_list(hybrid['nodes'])}" if several else ""
    required = [f"a core for each thread{' of all these nodes' if several else ''}"]
    if several and not placed:
        required.append(
            "a seccomp profile that allows set_mempolicy (kimi_kubernetes_seccomp_profile): "
            "without it memory lies where a thread first writes, and elsewhere where a node is full"
        )
    observed = f"{threads} threads{nodes}, the time of {pod.cpus} processors"
    if short:
        observed += ": the pod starts fewer threads and answers more slowly than the plan says"
    findings.add(
        "kubernetes.kt_kernel",
        severity="warning" if short else "info",
        observed=observed,
        required="; ".join(required),
        fix=f"kubectl exec {settings.kubernetes_name}-0 -c engine -- grep _allowed_list "
        "/proc/1/status  shows its processors and nodes; a CPU manager that is static gives whole "
        f"processors, of which two are a core: kimi_kubernetes_cpus: {2 * threads} then",
    )


def _check_storage(plan: MachinePlan, settings: Settings, findings: Findings) -> None:
    hosts = plan["parallel"]["hosts"]
    mode = access.choose_mode(settings, hosts)
    if hosts > 1 and mode == "ReadWriteOnce":
        findings.add(
            "kubernetes.access_mode",
            observed="kimi_kubernetes_access_mode: ReadWriteOnce",
            required=f"ReadWriteMany for {hosts} nodes",
            fix="remove kimi_kubernetes_access_mode",
        )
    load = plan["throughput"]["load_s"]
    seen = f"{format_bytes(plan['weights']['bytes'])} are read at each start"
    if load["low"] and load["high"]:
        seen += f", {load['low']:.0f} to {load['high']:.0f} s from a local disk (estimated)"
    chosen = settings.kubernetes_storage_class
    one = f"{pods.count_volume_gib(plan)}Gi"
    findings.add(
        "kubernetes.storage",
        observed=seen,
        required=f"{chosen or 'a default class'} that gives {one} as {mode} and reads"
        " fast enough for your patience",
        fix="kubectl get storageclass; kimi_kubernetes_storage_class names one",
    )
    both = f"{pods.count_volume_gib(plan, revisions=2)}Gi"
    findings.add(
        "kubernetes.storage",
        wording="revision",
        observed=f"{one}; each revision has a folder of its own, and nothing removes the old one",
        required=f"{both} before another revision is fetched",
        fix=f"write {both} into pvc.yaml and apply it, where the class's allowVolumeExpansion is "
        f"true; kubectl get persistentvolumeclaim/{settings.kubernetes_name}-models  shows its "
        "size",
    )


def _check_group(plan: MachinePlan, settings: Settings, pod: Pod, findings: Findings) -> None:
    findings.add(
        "kubernetes.lws",
        observed="not looked at",
        required="its controller, with networkConfig.subdomainPolicy in its "
        "leaderworkerset.x-k8s.io/v1",
        fix="kubectl explain leaderworkerset.spec.networkConfig.subdomainPolicy; ask the "
        "administrator to install it",
    )
    if not pod.gpus:
        return
    nodes, resource = plan["parallel"]["hosts"], settings.kubernetes_rdma_resource
    findings.add(
        "kubernetes.rdma",
        severity="info" if resource else "warning",
        observed=f"{nodes} nodes, {resource}"
        if resource
        else f"{nodes} nodes, kimi_kubernetes_rdma_resource not set",
        required="containers may lock any amount of memory (memlock): the cards pin what they "
        "read and write"
        if resource
        else "a resource of InfiniBand or RoCE cards, where the nodes have them",
        fix="kubectl exec POD -- sh -c 'ulimit -l'  shows the limit; the container runtime's own "
        "LimitMEMLOCK sets it"
        if resource
        else "kubectl describe node NODE  shows its resources; set kimi_kubernetes_rdma_resource "
        "to the one of its network cards",
    )


def _check_security(settings: Settings, findings: Findings) -> None:
    namespace = settings.kubernetes_namespace or "NAMESPACE"
    findings.add(
        "kubernetes.pod_security",
        observed="no exception of the profile",
        required="a namespace that admits restricted pods",
        fix=f"kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=restricted",
    )


def _check_others(plan: MachinePlan, settings: Settings, findings: Findings) -> None:
    if settings.kubernetes_monitoring_namespace:
        findings.add(
            "kubernetes.monitoring",
            observed="not looked at"
            + ("; no rules and no dashboard for sglang's metrics" if plan["hybrid"] else ""),
            required="servicemonitors and prometheusrules of monitoring.coreos.com/v1, and a "
            "Prometheus that selects them",
            fix="kubectl get crd servicemonitors.monitoring.coreos.com; kubectl get prometheus -A "
            "-o yaml  shows its serviceMonitorSelector",
        )
    web = plan["web"]
    if web and not settings.kubernetes_web_hostname:
        findings.add(
            "kubernetes.page",
            observed="kimi_kubernetes_web_hostname is not set",
            required="a host name, or a forwarded port",
            fix=f"{access.make_page_command(settings)}  and open {access.PAGE_URL}; or set "
            "kimi_kubernetes_web_hostname",
        )
    if web:
        findings.add(
            "kubernetes.web",
            observed=access.name_web_image(web, settings),
            required=f"{web['name']} {web['version']} that runs as a user other than root",
            fix="set kimi_kubernetes_web_image to an image of your own, pinned by its digest",
        )


def _check_settings(settings: Settings, findings: Findings) -> None:
    names = planned.list_without_effect(settings, _WITHOUT_EFFECT)
    if settings.ram_disk == "always":
        names.append("ram_disk")
    if settings.instances not in ("auto", 1):
        names.append("instances")
    if names:
        findings.add(
            "kubernetes.settings",
            observed=", ".join(f"kimi_{name}" for name in names),
            required="; ".join(_INSTEAD[n] for n in names if n in _INSTEAD) or "nothing instead",
            fix="remove them for the cluster",
        )
