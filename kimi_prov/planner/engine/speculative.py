"""Speculative decoding: a small draft model guesses tokens, the large one verifies them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.versions import parse_version
from kimi_prov.contract import paths
from kimi_prov.planner.storage import weights

if TYPE_CHECKING:
    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Draft, Model
    from kimi_prov.contract.documents.plan.engine import SpeculativePlan
    from kimi_prov.planner.decisions import DraftPlan
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

# Graphs of the passes that verify: 1.92 GiB with a draft, 0.44 without, and buffers (4x H200, vLLM
# 0.25.1, 2026-11-21). Kept also where graphs are off: that was not measured.
_GRAPHS_BYTES = 1536 << 20


def find_draft(settings: Settings, catalogue: Catalogue, engine: Engine) -> Draft | None:
    """Return the draft that this engine loads; None if none is set or the engine cannot load it.

    Raises UserError for a name that is not in the catalogue.
    """
    if not settings.speculative_model:
        return None
    draft = catalogue.draft(settings.speculative_model)
    able = engine.name == "vllm" and engine.variant == "cuda"
    return draft if able and parse_version(engine.version) >= parse_version(draft.least) else None


def count_draft_bytes(draft: Draft | None, ranks: int) -> int:
    """Return the bytes of the draft's weights on each of `ranks` GPUs, which share it.

    Embeddings and a head of the large model are loaded once: this is an upper bound.
    """
    return -(-draft.size_bytes // ranks) if draft else 0


def count_working_bytes(draft: Draft | None) -> int:
    """Return the bytes of decoding with a draft on each GPU beside its weights and its cache."""
    return _GRAPHS_BYTES if draft else 0


def count_kv_bytes_per_token(draft: Draft | None, dtype_bytes: int, ranks: int) -> int:
    """Return the draft's bytes of the cache of one token on each of `ranks` GPUs."""
    if draft is None:
        return 0
    return draft.kv_values * dtype_bytes // (ranks if draft.kv_split else 1)


def make_document(
    settings: Settings, catalogue: Catalogue, model: Model, engine: Engine, findings: Findings
) -> DraftPlan | None:
    """Choose the draft model, and check the request for it."""
    if not settings.speculative_model:
        return None
    requested = catalogue.draft(settings.speculative_model)
    draft = find_draft(settings, catalogue, engine)
    if draft is None:
        findings.add(
            "engine.draft",
            names={"engine": engine.name, "version": engine.version, "variant": engine.variant},
            observed=f"kimi_speculative_model: {requested.name}",
            required=f"vllm {requested.least} or newer on NVIDIA GPUs that hold all weights",
            fix="remove kimi_speculative_model, or set kimi_engine_version to a newer one",
            source=requested.source,
        )
        return None
    if model.name not in requested.models:
        findings.add(
            "engine.draft_model",
            names={"draft": requested.name, "model": model.name},
            observed=f"kimi_speculative_model: {requested.name}",
            required=f"a draft for {model.name}; this one is for {', '.join(requested.models)}",
            fix="remove kimi_speculative_model, or choose one of `kimi-prov catalog drafts`",
            source=requested.source,
        )
    source, revision = weights.split_address(settings.draft_weights_source or f"hf://{draft.repo}")
    pinned = settings.draft_manifest is not None or weights.COMMIT.fullmatch(revision)
    if not pinned and not source.startswith("file://"):
        findings.add(
            "weights.draft_unpinned",
            observed=source,
            required="kimi_draft_weights_manifest, or hf://REPOSITORY@ with a commit",
            fix=f"kimi-prov catalog pin hf://{draft.repo} --output FILE, and name the file in "
            "kimi_draft_weights_manifest",
        )
    findings.add(
        "engine.draft_unproven",
        observed=f"{draft.name}: size and cache are estimates",
        required="compare tokens a second with and without it (`kimi-prov bench`)",
        source=draft.source,
    )
    folder = re.sub(r"[^\w.-]", "-", revision)
    rows = settings.draft_manifest["files"] if settings.draft_manifest else None
    return {
        "name": draft.name,
        "method": draft.method,
        "tokens": settings.speculative_tokens,
        "source": source,
        "dir": f"{paths.MODELS}/{draft.name}/{folder}",
        "bytes": sum(row["size"] for row in rows) if rows else draft.size_bytes,
        "manifest": settings.draft_manifest,
    }


def make_section(draft: DraftPlan | None) -> SpeculativePlan | None:
    """Return the plan's `speculative`; its weights are in another section."""
    if draft is None:
        return None
    return {"name": draft["name"], "method": draft["method"], "tokens": draft["tokens"]}


def make_flags(draft: DraftPlan | None) -> dict[str, Any]:
    """Return the engine's flag for the draft."""
    if draft is None:
        return {}
    return {
        "speculative-config": {
            "model": draft["dir"],
            "method": draft["method"],
            "num_speculative_tokens": draft["tokens"],
        }
    }
