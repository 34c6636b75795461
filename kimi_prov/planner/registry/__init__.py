"""Every finding that the product can make, defined once: DEFINITIONS by id.

Pure data. Makers give what was observed and required (planner/findings.py), and nothing else
writes an id's title, severity, source or kind of remedy. An id that is not here is a KeyError.

Decides: what a finding is and what its severity does.
Applied by: roles/preflight.
Held by: tests/lab/test_plan_printed.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.planner.registry import (
    cloud,
    cluster,
    diagnose,
    drift,
    driver,
    engine,
    experts,
    gateways,
    gpu,
    groups,
    kubernetes,
    lifecycle,
    machine,
    metrics,
    network,
    recipes,
    serving,
    site,
    slurm,
    storage,
    web,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kimi_prov.planner.registry.definition import Definition

# The first part of a finding's id is its subject: the things that the finding is about.
SUBJECTS = {
    "bucket": "Buckets that weights come from",
    "bundle": "The offline bundle",
    "catalogue": "Rows of the catalogue",
    "cloud": "Machines of a cloud",
    "cluster": "The Kubernetes cluster that a folder is applied to",
    "context": "The context's length",
    "conversion": "Converted experts",
    "cpu": "Processors",
    "diagnose": "What `diagnose` recognises on a machine that serves, or does not",
    "disk": "Disks",
    "drift": "What is not as it was applied",
    "driver": "The NVIDIA driver",
    "engine": "The engine",
    "engine_args": "The engine's own arguments",
    "experts": "Experts in host memory",
    "firewall": "The firewall",
    "gateway": "Several machines behind one address",
    "gpu": "GPUs",
    "group": "One model over several machines",
    "host": "What else is installed",
    "kubernetes": "Pods of a Kubernetes cluster",
    "kv": "The cache",
    "memory": "Memory",
    "metrics": "Metrics",
    "numa": "NUMA nodes",
    "os": "The operating system",
    "packages": "The distribution's packages",
    "parallel": "How the model is shared out over GPUs",
    "port": "Ports",
    "python": "The engine's interpreter",
    "ram_disk": "The RAM disk",
    "recording": "Recordings of machines",
    "rest": "Machines that rest when nobody asks",
    "serve": "Engines that run already",
    "slurm": "Jobs of a SLURM cluster",
    "tuning": "Settings of the kernel",
    "upgrade": "Upgrades",
    "update": "Updates of the operating system",
    "web": "The page to talk to the model",
    "weights": "The weights",
}


def index_definitions(rows: Iterable[Definition]) -> dict[str, Definition]:
    """Index definitions. Raises ValueError for an id that is defined twice."""
    by_id: dict[str, Definition] = {}
    for row in rows:
        if row.id in by_id:
            message = f"the finding {row.id} is defined twice"
            raise ValueError(message)
        by_id[row.id] = row
    return by_id


DEFINITIONS: Mapping[str, Definition] = index_definitions(
    row
    for module in (
        cloud,
        cluster,
        diagnose,
        drift,
        driver,
        engine,
        experts,
        gateways,
        gpu,
        groups,
        kubernetes,
        machine,
        metrics,
        network,
        recipes,
        lifecycle,
        serving,
        site,
        slurm,
        storage,
        web,
    )
    for row in module.DEFINITIONS
)
