"""Experts converted for kt-kernel, AMXINT4 and AMXINT8: fetched, or made on the machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from kimi_prov.contract import paths
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.kt import quantise
from kimi_prov.planner.decisions import ConvertedExperts
from kimi_prov.planner.settings.flag_names import KT, parse_int
from kimi_prov.planner.storage.weights import COMMIT, split_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.models import Model
    from kimi_prov.contract.documents.plan.weights import (
        ConversionMethod,
        ConversionPlan,
        ConvertedWeights,
    )
    from kimi_prov.planner.decisions import EngineChoice, Weights
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

# Formats of a checkpoint that kt-kernel can quantise.
_INPUTS = ("bf16", "fp8")
# Relative error of a layer's output, compared with the original weights (random Gaussian ones).
_LOSS = {"AMXINT4": "0.24 to 0.30", "AMXINT8": "0.02"}


def _check_method_flag(settings: Settings, flags: Mapping[str, Any], findings: Findings) -> None:
    flag = flags.get(KT.method)
    if flag in quantise.KERNELS and flag != settings.kt_method:
        findings.add(
            "conversion.flag",
            names={"flag": flag},
            observed=f"kimi_engine_args: {KT.method}: {flag}",
            required="the variable kimi_kt_method, which plans them",
            fix=f"remove {KT.method} from kimi_engine_args and set kimi_kt_method: {flag}",
        )


def choose_conversion(
    settings: Settings,
    model: Model,
    choice: EngineChoice,
    weights: Weights,
    flags: Mapping[str, Any],
    findings: Findings,
) -> ConvertedExperts | None:
    """Decide where converted experts come from; None where the inventory asks for none.

    `flags` are the engine's, with the inventory's over the planner's. Their number of pools decides
    how the files are sliced.
    """
    _check_method_flag(settings, flags, findings)
    if settings.auto("kt_method"):
        if settings.kt_weights_source is not None:
            findings.add(
                "conversion.method",
                observed="kimi_kt_weights_source is set, and kimi_kt_method is auto",
                required=f"kimi_kt_method: {' or '.join(quantise.KERNELS)}",
                fix="set kimi_kt_method, or remove kimi_kt_weights_source",
            )
        return None
    method = str(settings.kt_method)
    if not choice.hybrid:
        findings.add(
            "conversion.engine",
            names={"method": method, "engine": choice.engine.name},
            observed=f"kimi_kt_method: {method}",
            required="KTransformers beside an NVIDIA GPU",
            fix="set kimi_engine: ktransformers, or remove kimi_kt_method",
        )
        return None
    if flags.get(KT.prefill_from):
        findings.add(
            "conversion.prefill",
            names={"method": method},
            observed=f"kimi_engine_args: {KT.prefill_from}",
            required="no threshold: the first long prompt would end the server",
            fix=f"remove {KT.prefill_from} from kimi_engine_args",
        )
    shape = model.architecture
    pools = parse_int(flags.get(KT.pools)) or 1
    width = (shape.expert_hidden or shape.hidden, shape.expert_width)
    layer = quantise.compute_layer_bytes(method, shape.experts, *width, pools)
    size = layer * (shape.layers - shape.dense_layers)
    if settings.kt_manifest is not None:
        size = sum(int(row["size"]) for row in settings.kt_manifest["files"])
    source, directory = settings.kt_weights_source, f"{weights.directory}-{method.lower()}-{pools}"
    if source is not None:
        source, directory = _resolve_source(str(source), model, method)
    converted = ConvertedExperts(method, directory, size, layer, pools, source)
    _check_conversion(settings, choice, weights, converted, findings)
    return converted


def make_document(
    converted: ConvertedExperts | None, choice: EngineChoice, model: Model, flags: Mapping[str, Any]
) -> ConversionPlan | None:
    """Make the plan's `conversion`; None where nothing is converted on the machine."""
    if converted is None or converted.source is not None:
        return None
    shape = model.architecture
    width = shape.expert_hidden or shape.hidden
    nodes = flags.get(KT.nodes)
    plan: ConversionPlan = {
        "method": cast("ConversionMethod", converted.method),
        "from": choice.weights_format,
        "dir": converted.directory,
        "bytes": converted.size_bytes,
        "layer_bytes": converted.layer_bytes,
        "layers": shape.layers - shape.dense_layers,
        # A layer in bf16 and the same layer converted.
        "memory_bytes": shape.experts * 3 * width * shape.expert_width * 2 + converted.layer_bytes,
        "threads": parse_int(flags.get(KT.threads)) or converted.pools,
        # Without a list sglang-kt uses the first nodes. The finding numa.binding refuses a list of
        # another length.
        "nodes": list(nodes) if isinstance(nodes, list) else list(range(converted.pools)),
        "argv": ["/usr/bin/python3", "-I", paths.ZIPAPP, "convert", "--config", paths.CONVERT],
    }
    return plan


def make_fetch_document(
    converted: ConvertedExperts | None, settings: Settings
) -> ConvertedWeights | None:
    """Make the plan's section of fetched converted experts; None where none are fetched."""
    if converted is None or converted.source is None:
        return None
    return {
        "source": converted.source,
        "manifest": settings.kt_manifest,
        "dir": converted.directory,
        "bytes": converted.size_bytes,
        "pools": converted.pools,
    }


def _resolve_source(source: str, model: Model, method: str) -> tuple[str, str]:
    """Return the address with its revision, and the directory."""
    source, revision = split_address(source)
    folder = re.sub(r"[^\w.-]", "-", revision)
    return source, f"{paths.MODELS}/{model.name}/{method.lower()}-{folder}"


def _check_conversion(
    settings: Settings,
    choice: EngineChoice,
    weights: Weights,
    converted: ConvertedExperts,
    findings: Findings,
) -> None:
    method, sizes = converted.method, f"{format_bytes(converted.size_bytes)} of converted experts"
    findings.add(
        "conversion.loss",
        names={"method": method},
        observed=f"kimi_kt_method: {method}: a layer's output is off by {_LOSS[method]} of its "
        f"size, and long prompts stay on the CPU; {sizes} beside "
        f"{format_bytes(weights.size_bytes)} of weights on the disk",
        required="a setting of the operator's: the planner never chooses it",
        fix="remove kimi_kt_method, or compare answers and speed with and without it",
    )
    if converted.source is None and choice.weights_format not in _INPUTS:
        findings.add(
            "conversion.input",
            names={"format": choice.weights_format, "method": method},
            observed=f"{weights.source or 'the weights'}: {choice.weights_format}",
            required=f"experts in {', '.join(_INPUTS)}",
            fix="remove kimi_kt_method: RAWINT4 serves int4 files as they are; or set "
            "kimi_weights_format to one of these where the model is published in it; or name "
            "experts that were converted elsewhere in kimi_kt_weights_source",
        )
    elif converted.source is None:
        findings.add(
            "conversion.here",
            observed=f"{weights.source or 'the weights'} ({choice.weights_format}, "
            f"{format_bytes(weights.size_bytes)}) to {converted.directory} "
            f"({format_bytes(converted.size_bytes)})",
            required=f"{format_bytes(converted.room_bytes)} of disk beside the weights; a layer at "
            "a time, so that a conversion cut short goes on where it was",
        )
        return
    pinned = settings.kt_manifest is not None or COMMIT.search(converted.directory)
    if converted.source is not None and not pinned and not converted.source.startswith("file://"):
        findings.add(
            "weights.converted_unpinned",
            observed=converted.source,
            required="kimi_kt_weights_manifest, or hf://REPOSITORY@ with a commit",
            fix="kimi-prov catalog pin hf://REPOSITORY@REVISION --output FILE, and name the file "
            "in kimi_kt_weights_manifest",
        )
