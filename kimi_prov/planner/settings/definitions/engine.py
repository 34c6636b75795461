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
        "threads",
        "count",
        "auto",
        "24",
        "Processor cores on which an engine computes; with experts on processors beside GPUs, the "
        "cores of the experts. auto: all but one or two of each NUMA node that it uses. An engine "
        "that computes on GPUs alone does not read it.",
        auto=True,
        most=4096,
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
        "workload",
        "choice",
        "mixed",
        "agents",
        "What the requests are, for estimates of drafts and of repeated prompts: chat, code, "
        "agents (programs that write code and send their whole history each time), or mixed.",
        choices=("mixed", "chat", "code", "agents"),
    ),
    define(
        _ENGINE,
        "speculative",
        "off_or_text",
        "auto",
        "kimi-k2.5-eagle3-mla",
        "A draft model that guesses tokens for the large one to verify; `kimi-prov catalog drafts` "
        "lists them. off: none. auto: one only where a measured pair of runs on such GPUs shows a "
        "gain for this kimi_workload and so many requests; else the plan says what one would gain.",
        auto=True,
    ),
    define(
        _ENGINE,
        "speculative_model",
        "text",
        None,
        "kimi-k2.5-eagle3-mla",
        "The older name of kimi_speculative for a draft's name.",
    ),
    define(
        _ENGINE,
        "speculative_tokens",
        "count",
        "auto",
        "3",
        "Tokens that the draft guesses before the model verifies them. auto: as its makers serve "
        "it.",
        auto=True,
        most=64,
    ),
    define(
        _ENGINE,
        "prefix_reuse",
        "share",
        None,
        "0.9",
        "Share of a prompt's tokens that an earlier request of the same conversation had. Not set: "
        "0.9 where kimi_workload is agents, else none.",
    ),
    define(
        _ENGINE,
        "cache_offload",
        "off_or_gib",
        "auto",
        "512",
        "GiB of host memory, of all engines together, for the cache of conversations that fall out "
        "of the GPUs; off: none. auto: most of what is idle, where prompts repeat "
        "(kimi_prefix_reuse) and it holds more than the GPUs do.",
        auto=True,
    ),
    define(
        _ENGINE,
        "prepared_weights",
        "choice",
        "auto",
        "on",
        "Whether each rank of vLLM keeps its slices of the weights on disk after its first load, "
        "and copies them at each later start (as much room as the weights take). A damaged file is "
        "put aside, and the checkpoint is loaded. auto: where a start with them was measured to be "
        "faster, and nothing serves without; else off.",
        auto=True,
        choices=("on", "off"),
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
