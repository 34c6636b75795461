"""The source of the weights, their revision, and their size in bytes.

Decides: where weights come from.
Applied by: roles/weights.
Held by: tests/component/on_host/weights/test_fetch.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov.catalog import model_bytes
from kimi_prov.contract import paths
from kimi_prov.planner.decisions import Weights

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Model
    from kimi_prov.contract.documents.plan.weights import (
        BucketPlan,
        ConvertedWeights,
        DraftWeights,
        WeightsPlan,
    )
    from kimi_prov.planner.decisions import DraftPlan
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

COMMIT = re.compile(r"[0-9a-f]{40}")
_BUCKETS = ("s3://", "gs://")


def is_bucket(source: str | None) -> bool:
    """Whether an address names a bucket."""
    return (source or "").startswith(_BUCKETS)


def _make_bucket_section(settings: Settings) -> BucketPlan:
    """Return how buckets are reached; without credentials, the machine's own role gives access."""
    return {
        "credentials_file": paths.BUCKET_CREDENTIALS if settings.bucket_credentials_file else None,
        "endpoint": settings.bucket_endpoint,
        "region": settings.bucket_region,
    }


def split_address(source: str, revision: str | None = None) -> tuple[str, str]:
    """Return the address with its revision, and the revision: its own, else `revision`."""
    if not source.startswith("hf://"):
        return source, revision or "local"
    repository, _, named = source.removeprefix("hf://").partition("@")
    named = named or revision or "main"
    return f"hf://{repository}@{named}", named


def resolve_source(
    settings: Settings, model: Model, weights_format: str, findings: Findings
) -> Weights:
    """Resolve the source, which is empty where neither inventory nor catalogue names one."""
    published = next((row for row in model.published if row.format == weights_format), None)
    repo = published.repo if published and weights_format != model.native_format else model.repo
    source = settings.weights_source or (f"hf://{repo}" if repo else "")
    if not source:
        findings.add(
            "weights.source_missing",
            names={"model": model.name},
            observed="kimi_weights_source is not set",
            required="a source, for `apply`; `check` and `plan` do without",
            fix="set kimi_weights_source, for example to file:///srv/model (a directory on the "
            "machine itself)",
            source=model.source,
        )
    source, revision = split_address(source, model.revision)
    pinned = settings.manifest is not None or COMMIT.fullmatch(revision) is not None
    if source and not pinned and not source.startswith("file://"):
        findings.add(
            "weights.unpinned",
            observed=f"{source}, no kimi_weights_manifest",
            required="a manifest, or hf://REPOSITORY@ with a commit of 40 hexadecimal digits",
            fix="set kimi_weights_manifest, or name the commit in kimi_weights_source"
            if source.startswith("hf://")
            else "kimi-prov catalog pin hf://OWNER/NAME@REVISION --output FILE, and name the file "
            "in kimi_weights_manifest",
        )
    size = (
        model_bytes.count_checkpoint_bytes(model.architecture, weights_format) + model.other_bytes
    )
    if settings.manifest is not None:
        size = sum(int(row["size"]) for row in settings.manifest["files"])
    folder = re.sub(r"[^\w.-]", "-", revision)
    return Weights(source, revision, f"{paths.MODELS}/{model.name}/{folder}", size, pinned)


def make_document(
    settings: Settings,
    weights: Weights,
    draft: DraftPlan | None,
    converted: ConvertedWeights | None,
) -> WeightsPlan:
    """Make the plan's `weights`; `draft` and `converted`: other fetched files, None for none."""
    fetched: DraftWeights | None = None
    if draft:
        fetched = {
            "source": draft["source"],
            "manifest": draft["manifest"],
            "dir": draft["dir"],
            "bytes": draft["bytes"],
        }
    plan: WeightsPlan = {
        "draft": fetched,
        "source": weights.source,
        "manifest": settings.manifest,
        "dir": weights.directory,
        "bytes": weights.size_bytes,
        "workers": settings.weights_workers,
        "token_file": paths.HUB_TOKEN if settings.hf_token_file else None,
        "hf_endpoint": settings.hf_endpoint,
        "ca_bundle": paths.CA_BUNDLE if settings.ca_bundle else None,
        "converted": converted,
    }
    sources = [weights.source, *(row["source"] for row in (draft, converted) if row)]
    if any(map(is_bucket, sources)):
        plan["bucket"] = _make_bucket_section(settings)
    return plan
