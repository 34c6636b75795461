"""Findings about a model that is served by jobs of a SLURM cluster, without root."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

DEFINITIONS = (
    Definition(
        "slurm.engine",
        title="{engine} is not served by a job with converted experts",
        severities=("blocker",),
        source="a unit of a machine's own converts them, for its processors and pools",
        remedy="setting",
    ),
    Definition(
        "slurm.proxy",
        title="The job needs HAProxy: the engine speaks no TLS",
        severities=("info",),
        source="HAProxy is a process of the job, before an engine on the loopback; the engine's "
        "gate asks for the key",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "slurm.kt_kernel",
        title="kt-kernel's threads and memory need the node's cores and NUMA nodes",
        severities=("info",),
        source="its threads spin, each bound to a core, and it fails where a node is hidden "
        "(ktransformers#1570)",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "slurm.engine_lock",
        title="No packages are pinned for this engine: no job can install it",
        severities=("blocker",),
        source="the job of the environment installs from the lock files alone",
        remedy="catalogue",
        concerns="deployment",
    ),
    Definition(
        "slurm.instances",
        title="One job runs one engine: the other instances of the plan are left out",
        severities=("warning",),
        source="without root there is no proxy that shares requests out over engines",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "slurm.gres",
        title="The GPUs that the job asks for are not those of the plan",
        severities=("blocker",),
        source="sbatch --gres; the engine would end, or wait for GPUs that it never gets",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "slurm.gres_kind",
        title="The job asks for other GPUs than the plan was made for",
        severities=("warning",),
        source="gres.conf: the site names its cards itself; names of the catalogue are compared",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "slurm.python",
        title="The nodes need Python {version}: the packages are pinned for it",
        severities=("info",),
        source="a module, a conda environment or the system's own, on login and compute nodes",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "slurm.tuning",
        title="Settings of the kernel are the administrator's",
        severities=("info",),
        source="sysctl, transparent huge pages and the frequency governor are set by root; limits "
        "by slurmd (PropagateResourceLimits, LimitMEMLOCK)",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "slurm.firewall",
        title="No firewall of ours guards the port: everybody on the cluster's network reaches it",
        severities=("warning", "info"),
        source="the API speaks TLS alone and asks for the key at every path but /health; what the "
        "ranks say to each other has neither; rules of the kernel are set by root",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "slurm.ram_disk",
        title="There is no RAM disk: each start reads the weights from the shared file system",
        severities=("warning", "info"),
        source="root alone mounts a tmpfs, and files in /dev/shm count as the job's memory",
        remedy="setting",
        concerns="deployment",
        titles={"warning": "kimi_ram_disk: always has no effect in a job"},
    ),
    Definition(
        "slurm.driver",
        title="The driver of the nodes is the administrator's",
        severities=("blocker", "warning", "info"),
        source="a driver is changed by root; nvidia-smi on a node shows its version",
        remedy="software",
        concerns="deployment",
        titles={"blocker": "The driver of the nodes is too old for the engine"},
    ),
    Definition(
        "slurm.settings",
        title="Settings that have no effect in a job",
        severities=("info",),
        source="they are about what root does on a machine of one's own",
        remedy="setting",
        concerns="deployment",
    ),
)
