"""Whether an engine keeps its own slices of the weights in files, and copies them at a next start.

Decides: prepared weights.
Applied by: roles/serve.
Held by: tests/unit/planner/engine/test_prepared.py, tests/lab/test_prepared_served.py.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from kimi_prov.contract import paths
from kimi_prov.planner.decisions import Prepared
from kimi_prov.planner.settings.flag_names import VLLM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.plan.weights import PreparedWeightsPlan
    from kimi_prov.planner.decisions import Budget, EngineChoice, Weights, Workload
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

# The load format that the plugin adds to vLLM, and the flag with its settings.
LOAD_FORMAT = "kimi_prepared"
_EXTRA = "model-loader-extra-config"
# Flags that change nothing of what a rank holds after its load. What the plugin's key leaves out is
# here too: files of one folder and rank then have one key for as long as the machine is the same.
_HARMLESS = frozenset(
    {
        VLLM.context,
        VLLM.requests,
        VLLM.chunk,
        VLLM.gpu_share,
        VLLM.cache_offloading,
        "enable-auto-tool-choice",
        "enable-chunked-prefill",
        "enable-prefix-caching",
        "enforce-eager",
        "numa-bind",
        "numa-bind-nodes",
        "reasoning-parser",
        "tool-call-parser",
    }
)


def choose_prepared(
    settings: Settings,
    catalogue: Catalogue,
    work: Workload,
    python: str,
    findings: Findings,
) -> Prepared:
    """Choose whether the engine prepares weights; one that is asked for and cannot be blocks."""
    engine, weights_format = work.engine, work.weights_format
    request = settings.prepared_weights
    if request == "off":
        return Prepared(enabled=False, reason="the inventory says off (kimi_prepared_weights)")
    obstacle = _find_obstacle(settings, engine, weights_format, python)
    if obstacle is not None:
        if request == "on":
            findings.add(
                "weights.prepared",
                severity="blocker",
                wording="impossible",
                observed="kimi_prepared_weights: on",
                required=obstacle,
                fix="set kimi_prepared_weights to auto or off",
            )
        return Prepared(enabled=False, reason=f"it takes {obstacle}")
    measured = _is_measured(catalogue, engine, weights_format)
    if request == "on":
        if not measured:
            findings.add(
                "weights.prepared",
                severity="info",
                observed=f"{engine.name} {engine.version} ({engine.variant}), {weights_format}",
                required="a measured start of a whole model, which the catalogue has not: what "
                "they gain here is not known",
            )
        return Prepared(enabled=True, reason="the inventory says on (kimi_prepared_weights)")
    served = settings.served
    if served is not None and served.get("prepared"):
        measured = True
    elif served is not None and measured:
        return Prepared(enabled=False, reason="the machine serves without (kimi_choose_anew)")
    if not measured:
        build = f"{engine.name} {engine.version} ({engine.variant}) with {weights_format}"
        return Prepared(enabled=False, reason=f"no start of a whole model was measured: {build}")
    return Prepared(enabled=True, reason="such a start was measured to be faster")


def _find_obstacle(
    settings: Settings, engine: Engine, weights_format: str, python: str
) -> str | None:
    """Say what is lacking to prepare weights; None where nothing is."""
    plugin = engine.prepared
    if plugin is None:
        return "a version of vLLM that the plugin knows (kimi_prov/catalog/engines.yaml)"
    if weights_format not in plugin.formats:
        return f"weights in {' or '.join(plugin.formats)}, for {engine.variant} builds"
    if python not in plugin.python:
        return f"Python {' or '.join(plugin.python)}"
    return _find_contradiction(settings)


def _find_contradiction(settings: Settings) -> str | None:
    if settings.hosts_per_model > 1:
        return "a model that one host serves"
    if settings.ram_disk == "always":
        return "no RAM disk of the checkpoint (kimi_ram_disk: always)"
    for flag in (VLLM.load_format, _EXTRA):
        if flag in settings.engine_args:
            return f"kimi_engine_args without {flag}"
    return None


def _is_measured(catalogue: Catalogue, engine: Engine, weights_format: str) -> bool:
    """Whether the catalogue has a measured start of a whole model on GPUs in this way."""
    return engine.variant == "cuda" and any(
        row.load_format == LOAD_FORMAT and row.layers is None and row.weights == weights_format
        for row in catalogue.load_times
    )


def make_document(
    choice: EngineChoice,
    settings: Settings,
    weights: Weights,
    budget: Budget,
    flags: Mapping[str, object],
) -> PreparedWeightsPlan:
    """Make the plan's `prepared_weights`. `bytes`: of all ranks' files, estimated."""
    folder = manifest = None
    if choice.prepared.enabled:
        manifest = _find_manifest(settings, weights)
        folder = _name_folder(choice, weights, manifest, flags)
    return {
        "enabled": choice.prepared.enabled,
        "reason": choice.prepared.reason,
        "dir": folder,
        "bytes": _count_bytes(budget) if folder else 0,
        "manifest": manifest,
    }


def make_flags(document: PreparedWeightsPlan, index: int) -> dict[str, object]:
    """Return the flags of one instance, which has a folder of its own."""
    if document["dir"] is None:
        return {}
    extra: dict[str, object] = {"folder": f"{document['dir']}/{index}"}
    if document["manifest"] is not None:
        extra["manifest"] = document["manifest"]
    return {VLLM.load_format: LOAD_FORMAT, _EXTRA: extra}


def _find_manifest(settings: Settings, weights: Weights) -> str | None:
    """Return what stands for the bytes of all files: a digest, or an address with a commit.

    None where neither is known: the plugin then counts the time of each file's last change.
    """
    if settings.manifest is not None:
        text = json.dumps(settings.manifest, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
    return weights.source if weights.pinned else None


def _name_folder(
    choice: EngineChoice, weights: Weights, manifest: str | None, flags: Mapping[str, object]
) -> str:
    """Name the folder by all that the plan knows to shape the files.

    The files themselves have the plugin's key, which knows more: a folder may hold files of several
    keys, and never a wrong one.
    """
    shaping = {name: value for name, value in flags.items() if name not in _HARMLESS}
    parts = [choice.env_name, weights.directory, manifest, shaping]
    text = json.dumps(parts, sort_keys=True, default=str)
    return f"{paths.PREPARED}/{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _count_bytes(budget: Budget) -> int:
    gpu = budget.gpu
    if gpu is None:
        return budget.host_weights
    return gpu.weights * gpu.gpus * budget.instances
