"""Findings about a machine of a cloud that brings itself up."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

DEFINITIONS = (
    Definition(
        "cloud.driver",
        title="The image has to bring a driver, or the machine restarts for one",
        severities=("info",),
        source="the plan's driver; an image's own is known when the machine runs",
        remedy="none",
        concerns="deployment",
    ),
    Definition(
        "cloud.image",
        title="No image of the machine is named",
        severities=("warning",),
        source="images of AWS have another name in each region",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "cloud.idle",
        title="Nothing ends the machine when nobody asks: it is paid for until somebody deletes it",
        severities=("warning",),
        source="kimi_idle_stop is not set",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "cloud.machines",
        title="No kind of machine is known that serves this",
        severities=("warning",),
        source="clouds.yaml, each kind planned with these settings",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "cloud.package",
        title="The machine cannot get the kimi-prov that rendered it",
        severities=("blocker",),
        source="nothing is installed by a name that somebody else may own",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "cloud.secrets",
        title="Secrets are not carried: whoever may describe the machine reads its user data",
        severities=("warning",),
        source="user data is shown by the clouds' metadata servers and consoles",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "cloud.user_data",
        title="The user data is larger than the cloud takes",
        severities=("warning",),
        source="16 KiB on AWS, 256 KiB on Google",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "cloud.weights",
        title="The weights do not come from a bucket: each start pays for a long download",
        severities=("blocker", "warning"),
        source="reference 004: eight minutes from a bucket, far longer from the hub",
        remedy="setting",
        concerns="deployment",
    ),
)
