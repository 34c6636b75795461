"""Findings about experts in host memory, and their conversion."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

_KT_MEASURED = (
    "kt-kernel 0.7.2, measured; RAWINT4 serves Kimi's own int4 files with 0.0096 "
    "and converts nothing"
)
_PAGE = "docs/guides/kt-experts.md"

DEFINITIONS = (
    Definition(
        "conversion.engine",
        title="{method} is a method of KTransformers, and the plan's engine is {engine}",
        severities=("blocker",),
        source=_KT_MEASURED,
        remedy="setting",
    ),
    Definition(
        "conversion.flag",
        title="--kt-method {flag} reads converted weights, and the plan has none",
        severities=("blocker",),
        source=_KT_MEASURED,
        remedy="setting",
    ),
    Definition(
        "conversion.here",
        title="The experts are converted on the machine, by kt-kernel's library",
        severities=("info",),
        source="`kt quant` of 0.7.2 calls a script that is not in its wheel",
        remedy="none",
    ),
    Definition(
        "conversion.input",
        title="{format} weights cannot be converted to {method}",
        severities=("blocker",),
        source="kt-kernel 0.7.2 quantises from bf16; fp8 is widened to that",
        remedy="setting",
    ),
    Definition(
        "conversion.loss",
        title="{method} quantises the experts once more: answers become worse",
        severities=("warning",),
        source=_KT_MEASURED,
        remedy="setting",
    ),
    Definition(
        "conversion.method",
        title="What the given experts were converted to is not said",
        severities=("blocker",),
        source=_KT_MEASURED,
        remedy="setting",
    ),
    Definition(
        "conversion.prefill",
        title="{method} experts cannot be given back to the GPU for long prompts",
        severities=("blocker",),
        source="kt-kernel 0.7.2: AMXMoEWrapper lacks submit_write_weight_scale_to_buffer, "
        "which sglang-kt's kt_ep_wrapper calls",
        remedy="setting",
    ),
    Definition(
        "experts.avx2",
        title="kt-kernel computes the experts with AVX2: right, and several times slower",
        severities=("warning",),
        source="kt-kernel 0.7.2 measured: 7 times slower at batch 1, 4 times at 64",
        remedy="hardware",
    ),
    Definition(
        "experts.dense",
        title="Dense weights in int8 would be faster, and answers somewhat worse",
        severities=("warning", "info"),
        source="the kernel alone on 16 cores with AMX, 2026-11-24; logprobs of the lab's model "
        "through vLLM, 2026-11-27: docs/guides/kt-experts.md",
        remedy="setting",
        titles={"int8": "Dense weights are held in int8: answers become somewhat worse"},
    ),
    Definition(
        "experts.dense_way",
        title="Dense weights cannot be held in int8 here",
        severities=("blocker",),
        source=_PAGE,
        remedy="setting",
    ),
    Definition(
        "experts.fallback",
        title="vLLM's own INT4 experts serve the model, at a price",
        severities=("warning",),
        source=_PAGE,
        remedy="depends",
    ),
    Definition(
        "experts.faster",
        title="Once started, vLLM's own experts may answer faster: they read weights with AMX",
        severities=("info",),
        source="16 cores with AMX, whole layers of Kimi, 2026-11-21: docs/guides/kt-experts.md",
        remedy="setting",
    ),
    Definition(
        "experts.instances",
        title="One engine's experts lie over all nodes: there is no room for a second",
        severities=("blocker",),
        source=_PAGE,
        remedy="setting",
    ),
    Definition(
        "experts.way",
        title="This machine cannot compute the experts as kimi_experts says: {way}",
        severities=("blocker",),
        source=_PAGE,
        remedy="depends",
        titles={"none": "{engine} {version} cannot compute {model}'s experts here"},
    ),
)
