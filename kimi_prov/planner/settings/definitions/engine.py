"""Variables of an inventory: the engine and its upgrades."""

from __future__ import annotations

from kimi_prov.planner.settings.definitions.variable import OFF, Variable, define

_ENGINE = "Engine"
_UPGRADE = "Upgrades"

VARIABLES: tuple[Variable, ...] = (
    define(
        _ENGINE,
        "engine",
        "choice",
        "auto",
        "vllm",
        "The engine. auto: one that serves the model on this machine.",
        auto=True,
        choices=("vllm", "ktransformers"),
    ),
    define(
        _ENGINE,
        "engine_version",
        "text",
        "auto",
        "0.32.0",
        "The engine's version. auto: the one that the catalogue pins.",
        auto=True,
    ),
    define(
        _ENGINE,
        "engine_args",
        "flags",
        {},
        "{max-num-batched-tokens: 4096, enforce-eager: null}",
        "Flags that override the plan's; a value of null removes a flag. A flag with which memory "
        "is counted has to be a number.",
    ),
    define(
        _ENGINE,
        "experts",
        "choice",
        "auto",
        "vllm",
        "The backend of INT4 experts without a GPU: native, our own kernel in vLLM's threads; "
        "kt, kt-kernel inside vLLM; vllm, its own (more memory, an hour and more at every start). "
        "auto: the first of these that the machine supports.",
        auto=True,
        choices=("native", "kt", "vllm"),
    ),
    define(
        _ENGINE,
        "dense_weights",
        "choice",
        "auto",
        "int8",
        "Format of attention, shared experts, dense layers and head where kimi_experts is "
        "native or kt: bf16, as published; int8, by this project's kernel (faster, with less "
        "memory, and somewhat worse answers). auto: bf16.",
        auto=True,
        choices=("bf16", "int8"),
    ),
    define(
        _ENGINE,
        "speculative_model",
        "text",
        None,
        "kimi-k2.5-eagle3-mla",
        "A draft model that guesses tokens for the large one to verify; `kimi-prov catalog drafts` "
        "lists them. Not set: none.",
    ),
    define(
        _ENGINE,
        "speculative_tokens",
        "count",
        3,
        "3",
        "Tokens that the draft guesses before the model verifies them.",
    ),
    define(
        _ENGINE,
        "engine_stand_in",
        "source",
        None,
        "file:///opt/models/kimi-k2-lab",
        "For machines without the hardware: plan as usual, but serve the tiny model kimi-k2-lab "
        "from this source with vLLM's CPU build. Every output says so.",
    ),
    define(
        _ENGINE,
        "start_timeout_s",
        "seconds",
        "auto",
        "7200",
        "Seconds until the engine has to answer. auto: by the size of the weights. The unit itself "
        "waits at least an hour.",
        auto=True,
    ),
    define(
        _UPGRADE,
        "upgrade_min_speed",
        "share",
        None,
        "0.9",
        "Least speed of a new engine, as a share of the old one's, by the same short probe of "
        "each. Below it the machine goes back. Not set: both speeds are only reported.",
    ),
    define(
        _UPGRADE,
        "upgrade_in_place",
        "switch",
        OFF,
        "true",
        "If the disk has no room for both versions, remove the serving one before the new one is "
        "fetched: nothing serves meanwhile, and a rollback is impossible.",
    ),
    define(
        _UPGRADE,
        "keep_versions",
        "count",
        2,
        "3",
        "Number of versions that `rollback` can restore, with the one that serves.",
        most=100,
    ),
)
