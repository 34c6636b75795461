"""Speculative decoding: a small draft model guesses tokens, the large one verifies them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.versions import parse_version
from kimi_prov.contract import paths
from kimi_prov.planner.storage import weights

if TYPE_CHECKING:
    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Draft, DraftTrial, Model
    from kimi_prov.contract.documents.plan.engine import SpeculativePlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import DraftPlan
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

# Graphs of the passes that verify: 1.92 GiB with a draft, 0.44 without, and buffers (4x H200, vLLM
# 0.25.1, 2026-11-21). Kept also where graphs are off: that was not measured.
_GRAPHS_BYTES = 1536 << 20


def take_measured_draft(
    host: Host, settings: Settings, catalogue: Catalogue, model: Model
) -> Settings:
    """Return the settings with the draft of which a measured pair shows a gain for this load.

    It has to be measured with this model and format on as many of the same GPUs, with the kind of
    text that `kimi_workload` names, and with both fewer and more requests at once, or as many. A
    machine that serves gets no new draft unasked.
    """
    chosen = settings.speculative_model is not None or not settings.auto("speculative")
    if chosen or settings.served is not None:
        return settings
    gains = [
        (min(trial.gain for trial in near), draft.name)
        for draft in catalogue.drafts
        if (near := _list_trials(host, settings, catalogue, model, draft))
    ]
    best = max(gains, default=(0.0, ""))
    return replace(settings, speculative_model=best[1]) if best[0] > 1 else settings


def _list_trials(
    host: Host, settings: Settings, catalogue: Catalogue, model: Model, draft: Draft
) -> list[DraftTrial]:
    """List the trials beside the requested number of requests at once; none where one is missing.

    The larger and the smaller number that are nearest speak for those between them.
    """
    weights_format = (
        model.native_format if settings.auto("weights_format") else settings.weights_format
    )
    trials = [
        trial
        for trial in catalogue.draft_trials
        if (trial.draft, trial.engine) == (draft.name, "vllm")
        and trial.load == settings.workload
        and (trial.model, trial.format) == (model.name, weights_format)
        and host.gpu is not None
        and catalogue.find_gpu(trial.gpu) == host.gpu
        and trial.gpus == len(host.gpu_bytes) * settings.hosts_per_model
        and trial.tokens == count_guesses(settings, draft)
    ]
    below = [trial for trial in trials if trial.requests <= settings.concurrency]
    above = [trial for trial in trials if trial.requests >= settings.concurrency]
    if not below or not above:
        return []
    return [max(below, key=lambda t: t.requests), min(above, key=lambda t: t.requests)]


def can_load(draft: Draft, engine: Engine) -> bool:
    """Whether the engine decodes with this draft: vLLM on NVIDIA GPUs, new enough for it."""
    if engine.name != "vllm" or engine.variant != "cuda" or draft.least is None:
        return False
    return parse_version(engine.version) >= parse_version(draft.least)


def count_guesses(settings: Settings, draft: Draft) -> int:
    """Return the tokens that the draft guesses in each step."""
    tokens = settings.speculative_tokens
    return draft.tokens if tokens == "auto" else tokens


def find_draft(settings: Settings, catalogue: Catalogue, engine: Engine) -> Draft | None:
    """Return the draft that this engine loads; None if none is set or the engine cannot load it.

    Raises UserError for a name that is not in the catalogue.
    """
    if not settings.speculative_model:
        return None
    draft = catalogue.draft(settings.speculative_model)
    return draft if can_load(draft, engine) else None


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
    if draft is None and settings.auto("speculative"):
        return None
    if draft is None:
        able = f"vllm {requested.least} or newer on NVIDIA GPUs that hold all weights"
        newer = ", or set kimi_engine_version to a newer one" if requested.least else ""
        findings.add(
            "engine.draft",
            names={"engine": engine.name, "version": engine.version, "variant": engine.variant},
            observed=f"kimi_speculative: {requested.name}",
            required=able if requested.least else "a draft that a version of vLLM here loads",
            fix=f"set kimi_speculative to off or to another draft{newer}",
            source=requested.source,
        )
        return None
    if model.name not in requested.models:
        findings.add(
            "engine.draft_model",
            names={"draft": requested.name, "model": model.name},
            observed=f"kimi_speculative: {requested.name}",
            required=f"a draft for {model.name}; this one is for {', '.join(requested.models)}",
            fix="set kimi_speculative to off, or to one of `kimi-prov catalog drafts`",
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
        "tokens": count_guesses(settings, draft),
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
