"""Findings about several hosts that serve one model together."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

DEFINITIONS = (
    Definition(
        "group.engine",
        title="{engine} does not span several hosts",
        severities=("blocker",),
        source="vLLM has --nnodes; KTransformers and kt-kernel keep the experts in the memory of "
        "one host",
        remedy="setting",
    ),
    Definition(
        "group.layout",
        title="The parts of the model do not come out even over the hosts of the group",
        severities=("blocker",),
        source="vLLM: tensor, pipeline and data parallel sizes multiply to all ranks, and each "
        "host runs an equal share of them",
        remedy="setting",
    ),
    Definition(
        "group.ray",
        title="Ray is not used: the engine spans hosts by itself",
        severities=("blocker",),
        source="vLLM: --nnodes above 1 excludes the Ray executor; no version of the catalogue "
        "asks for Ray",
        remedy="setting",
    ),
    Definition(
        "group.settings",
        title="The hosts of the group are told different things",
        severities=("blocker",),
        source="one model, one command line: what differs would fail at the start or hang",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "group.unlike",
        title="The hosts of the group are not alike",
        severities=("blocker", "warning"),
        source="every rank holds an equal share and works in step: the least host counts for all, "
        "and NCCL and the engine want the same build everywhere",
        remedy="depends",
        concerns="deployment",
        titles={"warning": "The hosts of the group are not alike: the least of them counts"},
    ),
    Definition(
        "upgrade.group",
        title="Hosts that serve a model together go back where nothing serves, and only then",
        severities=("warning",),
        source="a switch is of one machine, and hosts with different plans do not start together: "
        "each sees for itself that its group does not serve, and only its head what verify says",
        remedy="setting",
        concerns="deployment",
    ),
)
