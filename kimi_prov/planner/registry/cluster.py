"""Findings about the Kubernetes cluster that a rendered folder is applied to."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

DEFINITIONS = (
    Definition(
        "cluster.namespace",
        title="The namespace is not there",
        severities=("blocker",),
        source="kubectl get namespace; it is the site's, with its quota and its labels, and no "
        "render makes it",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "cluster.api",
        title="The cluster does not know {group}",
        severities=("blocker",),
        source="the groups that the API server lists (/apis)",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "cluster.devices",
        title="Too few nodes offer {resource}",
        severities=("blocker",),
        source="allocatable in a node's status; the vendor's device plugin puts it there",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "cluster.room",
        title="Too few nodes are large enough for a pod of the engine",
        severities=("blocker",),
        source="allocatable in a node's status, whatever runs there now; a pod whose requests "
        "exceed every node's is never scheduled",
        remedy="depends",
        concerns="deployment",
    ),
    Definition(
        "cluster.nodes",
        title="The nodes cannot be seen: nobody knows whether a pod fits on one",
        severities=("info",),
        source="kubectl get nodes; a user of a namespace may not be allowed that",
        remedy="none",
        concerns="deployment",
    ),
    Definition(
        "cluster.storage_class",
        title="There is no storage class for the volume of the weights",
        severities=("blocker",),
        source="kubectl get storageclass; a claim without a class takes the default one",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "cluster.ingress_class",
        title="There is no such ingress class",
        severities=("blocker",),
        source="kubectl get ingressclass; an ingress of a class that nobody serves stays without "
        "an address",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "cluster.quota",
        title="The namespace's quota has no room for it",
        severities=("blocker",),
        source="hard and used in a ResourceQuota's status; a pod that exceeds it is not created",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "cluster.secret",
        title="A secret that the pods mount is not there",
        severities=("blocker",),
        source="a pod waits for a secret that is not optional before its containers start",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "cluster.left_over",
        title="Another workload of this name serves, too",
        severities=("warning",),
        source="an earlier render was of another kind; apply removes nothing that it did not find "
        "in the folder",
        remedy="process",
        concerns="deployment",
    ),
)
