"""Findings about the engine, its command line and the interpreter."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

_ENGINES = "kimi_prov/catalog/engines.yaml"
_BROKEN = "kimi_prov/catalog/broken.yaml"
_ENGINE_ROW = "the engine's row in kimi_prov/catalog/engines.yaml"
_DRAFT_ROW = "the draft's row in kimi_prov/catalog/models.yaml"

DEFINITIONS = (
    Definition(
        "engine.alternative",
        title="llama.cpp and ik_llama.cpp would serve this model on this machine without a GPU",
        severities=("info",),
        source="13.4 tokens/s of Kimi-K2 IQ2_KL on one EPYC 9965 (ik_llama.cpp issue 612)",
        remedy="none",
    ),
    Definition(
        "engine.arch",
        title="{engine} {version} is not built for {arch}",
        severities=("blocker",),
        source=_ENGINE_ROW,
        remedy="hardware",
        own_source=True,
    ),
    Definition(
        "engine.capability",
        title="{engine} {version} ({variant}) was built without machine code for compute "
        "capability {capability}",
        severities=("blocker", "warning"),
        source=_ENGINE_ROW,
        remedy="setting",
        own_source=True,
        titles={
            "blocker": "{engine} {version} ({variant}) has no FP4 kernels for compute capability "
            "{capability}",
        },
    ),
    Definition(
        "engine.command_line",
        title="{name} {version} ({variant}) does not accept its command line",
        severities=("blocker",),
        source="the engine's own argument parser",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "engine.draft",
        title="{engine} {version} ({variant}) does not decode with this draft",
        severities=("blocker",),
        source=_DRAFT_ROW,
        remedy="setting",
        own_source=True,
    ),
    Definition(
        "engine.draft_model",
        title="{draft} was not trained for {model}: its guesses would be rejected",
        severities=("blocker",),
        source=_DRAFT_ROW,
        remedy="setting",
        own_source=True,
    ),
    Definition(
        "engine.draft_gain",
        title="A draft would answer this load faster: {gain} times as many tokens a second "
        "(estimated)",
        severities=("warning", "info"),
        source=_DRAFT_ROW,
        remedy="setting",
        concerns="deployment",
        titles={
            "warning": "The draft makes this load slower: {gain} times as many tokens a second "
            "(estimated)",
            "none": "No draft makes this load faster (estimated)",
            "hybrid": "No draft in front of experts in host memory: each guess reads experts of "
            "its own",
        },
        own_source=True,
    ),
    Definition(
        "engine.draft_context",
        title="The draft takes room of the cache, and shortens the context",
        severities=("warning",),
        source="the plan's own sums, without the draft and with it",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "engine.cache_offload",
        title="Prompts repeat: {tokens} tokens of cache in host memory are read back in place of "
        "being computed",
        severities=("blocker", "warning", "info"),
        source="kv_offload of vLLM 0.19.1, 0.25.1 and 0.32.0; the gain is estimated, not measured",
        remedy="setting",
        concerns="deployment",
        titles={
            "flag": "The inventory sets the cache in host memory twice",
            "impossible": "This plan keeps no cache in host memory",
            "large": "The cache in host memory does not fit beside the rest",
            "small": "Prompts repeat, but host memory would hold no more of the cache than the "
            "GPUs do",
        },
    ),
    Definition(
        "engine.draft_unproven",
        title="What this draft gains was not measured by this project: it was run with random "
        "weights",
        severities=("info",),
        source=_DRAFT_ROW,
        remedy="none",
        own_source=True,
    ),
    Definition(
        "engine.flag",
        title="{engine} {version} does not take --{flag}",
        severities=("blocker", "warning"),
        source="kimi_prov/catalog/flags.yaml: the parsers of the wheels",
        remedy="setting",
        concerns="deployment",
        titles={
            "warning": "--{flag} goes away with a later {engine}",
            "foreign": "--{flag} is a flag of another engine",
        },
        own_source=True,
    ),
    Definition(
        "engine.flag_left_out",
        title="{combination}: {flags} left out",
        severities=("warning",),
        source=_BROKEN,
        remedy="setting",
        concerns="deployment",
        own_source=True,
    ),
    Definition(
        "engine.flag_replaced",
        title="{engine} {version} has no --{flag}: {instead}",
        severities=("warning",),
        source="kimi_prov/catalog/flags.yaml, or the engine's row in engines.yaml",
        remedy="setting",
        concerns="deployment",
        own_source=True,
    ),
    Definition(
        "engine.format",
        title="{engine} {version} ({variant}) does not serve {model}'s {format} weights",
        severities=("blocker",),
        source=_ENGINE_ROW,
        remedy="gpus",
        own_source=True,
    ),
    Definition(
        "engine.known_broken",
        title="This combination is known not to work",
        severities=("blocker", "warning", "info"),
        source=_BROKEN,
        remedy="setting",
        own_source=True,
        own_title=True,
    ),
    Definition(
        "engine.kv_dtype",
        title="The inventory asks for a cache that the engine does not keep on these GPUs",
        severities=("blocker", "warning"),
        source="vLLM keeps an 8-bit MLA cache on compute capability 9.0 and later",
        remedy="setting",
    ),
    Definition(
        "engine.kv_dtype_chosen",
        title="An 8-bit cache was chosen: a 16-bit one would not hold the context",
        severities=("info",),
        source="fp8 halves the bytes of a token",
        remedy="setting",
    ),
    Definition(
        "engine.model_unknown",
        title="Whether {engine} {version} serves {model} is not known",
        severities=("warning",),
        source=_ENGINE_ROW,
        remedy="setting",
        own_source=True,
    ),
    Definition(
        "engine.no_gpu",
        title="KTransformers does not serve without an NVIDIA GPU",
        severities=("blocker",),
        source=_BROKEN,
        remedy="gpus",
        own_source=True,
        own_title=True,
    ),
    Definition(
        "engine.not_provisioned",
        title="This program does not install {engine} {version} ({variant}) on such a machine",
        severities=("blocker",),
        source=_ENGINES,
        remedy="catalogue",
    ),
    Definition(
        "engine.override",
        title="The inventory asks for another engine than the planner would choose",
        severities=("info",),
        source="the inventory wins over the planner",
        remedy="setting",
    ),
    Definition(
        "engine.reasoning",
        title="The model thinks before it answers: a small token budget is used up by reasoning",
        severities=("info",),
        source="reference 004, trouble 10; reference 002: `content` is null until the "
        "reasoning has ended",
        remedy="none",
    ),
    Definition(
        "engine.sequences",
        title="So many requests at once exhaust the GPUs in the sampler's warm-up",
        severities=("warning",),
        source="reference 004, trouble 7: `CUDA out of memory` at 1024 sequences, 64 served",
        remedy="setting",
        titles={"wait": "Some of the requests asked for will wait"},
    ),
    Definition(
        "engine.speculative",
        title="Speculative decoding and prefix caching may get in each other's way",
        severities=("info",),
        source="reference 002, caveats: look in the engine's log that both are active",
        remedy="none",
    ),
    Definition(
        "engine.stand_in",
        title="What is served is a stand-in",
        severities=("warning",),
        source="the inventory",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "engine.tight",
        title="The GPUs are filled to the brim: small passes and little working memory were chosen",
        severities=("warning",),
        source="reference 004, troubles 7 to 9: 0.9 of 80 GB leaves -3.32 GiB for the cache, "
        "0.95 leaves 0.64",
        remedy="depends",
    ),
    Definition(
        "engine.eager",
        title="Without CUDA graphs a token takes several times as long",
        severities=("warning",),
        source="vLLM 0.25.1 on two H200, five of Kimi K2's layers: 20 ms a token, where 0.9 to 1.8 "
        "are estimated with graphs; huggingface/physics-intern pull 2: 22 and 90 tokens a second",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "engine.too_old",
        title="{engine} {version} is too old for {model}",
        severities=("blocker",),
        source="the model's row in kimi_prov/catalog/models.yaml",
        remedy="setting",
        own_source=True,
    ),
    Definition(
        "engine.version",
        title="{engine} {version} ({variant}) is not in the catalogue",
        severities=("blocker",),
        source=_ENGINES,
        remedy="setting",
    ),
    Definition(
        "engine_args.override",
        title="The inventory overrides the plan's --{flag}",
        titles={"warning": "--{flag} in kimi_engine_args contradicts {variable}"},
        severities=("warning", "info"),
        source="kimi_engine_args wins over the planner",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "engine_args.reserved",
        title="kimi_engine_args sets --{flag}, which the product itself has to set",
        severities=("blocker",),
        source="the proxy in front holds TLS and keys; engines listen on loopback",
        remedy="setting",
        concerns="deployment",
    ),
    Definition(
        "python.engine",
        title="{engine} {version} is not made for this machine's Python",
        severities=("warning",),
        source=_ENGINE_ROW,
        remedy="software",
        concerns="deployment",
        own_source=True,
    ),
    Definition(
        "python.lock",
        title="No pinned packages of {engine} {version} ({variant}) for its Python",
        severities=("blocker", "warning", "pass"),
        source="kimi_prov/catalog/locks, and the engine's row in engines.yaml",
        remedy="software",
        concerns="deployment",
        titles={
            "pass": "The engine's packages are pinned for this machine's Python",
            "brought": "CPython {version} is brought, for which the engine's packages are pinned",
        },
        own_source=True,
    ),
)
