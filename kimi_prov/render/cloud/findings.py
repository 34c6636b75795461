"""The plan's findings that hold on a cloud machine, and findings about its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.rendered_kinds import CLOUD_INIT
from kimi_prov.planner.findings import Findings
from kimi_prov.planner.plan import find_refusals
from kimi_prov.planner.storage.weights import is_bucket
from kimi_prov.render.cloud import variables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.clouds import CloudMachine
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.render.cloud.package import Package
    from kimi_prov.render.folder_writer import File

_INSTEAD = {
    "kimi_hf_token_file": "weights from a bucket, by the machine's role",
    "kimi_bucket_credentials_file": "a role for the machine",
    "kimi_api_keys_file": "the key that apply makes, shown by `kimi-prov key` on the machine",
}
_LIMIT_BYTES = {"gcp": 256 << 10, "aws": 16 << 10}


def select_findings(
    plan: MachinePlan, settings: Settings, kinds: Sequence[CloudMachine], launcher: str
) -> list[Finding]:
    """Give the findings of a plan that hold for a machine that provisions itself."""
    refused = find_refusals(plan)
    stopped = {row["id"] for row in refused}
    findings = Findings()
    findings.extend([*refused, *(row for row in plan["findings"] if row["id"] not in stopped)])
    source = plan["weights"]["source"]
    if not is_bucket(source):
        here = source.startswith("file://")
        findings.add(
            "cloud.weights",
            severity="blocker" if here else "warning",
            observed=source,
            required="s3://BUCKET/FOLDER or gs://BUCKET/FOLDER near the machine",
            fix="kimi-prov weights seed hf://OWNER/NAME@REVISION gs://BUCKET/FOLDER, and name it "
            "in kimi_weights_source",
        )
    back = variables.list_withheld(settings)
    if back:
        findings.add(
            "cloud.secrets",
            observed=", ".join(back),
            required="; ".join(_INSTEAD[name] for name in back if name in _INSTEAD) or "none",
            fix="remove them here, or put the files on the machine yourself and apply again",
        )
    if settings.idle_stop is None:
        findings.add(
            "cloud.idle",
            observed="kimi_idle_stop is not set",
            required="a time without a request after which the machine deletes itself",
            fix="set kimi_idle_stop: 20m",
        )
    if launcher == CLOUD_INIT and settings.cloud == "aws" and settings.cloud_image is None:
        findings.add(
            "cloud.image",
            observed="kimi_cloud_image is not set",
            required="an image of Debian 12 or 13 in each region",
            fix="aws ec2 describe-images --owners 136693071363 --filters "
            "'Name=name,Values=debian-12-amd64-*', and name one in kimi_cloud_image",
        )
    if not kinds:
        findings.add(
            "cloud.machines",
            observed=f"clouds.yaml has none of {settings.cloud}",
            required="a kind whose GPUs hold the weights",
            fix="name kinds in kimi_cloud_machines",
        )
    branch = plan["driver"]["required_branch"]
    if branch is not None:
        findings.add(
            "cloud.driver",
            observed=f"the machine installs driver {plan['driver']['version']} where its image has "
            "none, or an older one, and restarts once",
            required=f"branch {branch} or newer",
        )
    return findings.rows()


def check_package(package: Package) -> list[Finding]:
    """Give the finding for a machine that could only install kimi-prov by its name."""
    findings = Findings()
    if package.content is not None and package.object is None:
        findings.add(
            "cloud.package",
            observed="the machine never sees the folder, and the weights are in no bucket",
            required=f"{package.name} at a place that the machine reaches, by its SHA-256",
            fix="name a bucket in kimi_weights_source, or a wheel of kimi-prov: "
            f"--package https://HOST/{package.name}#sha256={package.sha256}",
        )
    return findings.rows()


def check_size(cloud: str, metadata: Sequence[File]) -> list[Finding]:
    """Give a finding for each metadata file that is larger than the cloud allows."""
    findings = Findings()
    longest = max(metadata, key=lambda file: len(file.content))
    if len(longest.content) > _LIMIT_BYTES[cloud]:
        findings.add(
            "cloud.user_data",
            observed=f"{longest.path}: {len(longest.content)} bytes",
            required=f"{_LIMIT_BYTES[cloud]} bytes at most",
            fix="leave kimi_weights_manifest out and let the bucket's own count",
        )
    return findings.rows()
