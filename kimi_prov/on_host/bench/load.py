"""The load that a bench puts on a machine: as requested, else chosen from the plan.

Decides: what load a bench puts on a machine, and what it refuses.
Applied by: playbooks/bench.yml.
Held by: tests/unit/on_host/bench/test_bench_loads.py, tests/unit/commands/test_bench_command.py,
  tests/component/commands/test_bench_play.py, tests/engines/test_bench_clients.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan

# Used where the plan predicts nothing: long enough to be a measurement, over in seconds.
INPUT_TOKENS, OUTPUT_TOKENS = 256, 64
_MIN_INPUT, _MIN_OUTPUT = 64, 32
# By the plan's figures one request takes no longer than this; lengths shrink to fit.
_REQUEST_S = 90.0
# The factor between two numbers of requests at once.
_STEP = 4
# The client counts with its own tokenizer and may differ by a few; a chat's template adds some.
_SPARE_TOKENS = 64
# vLLM's answer length for a VisionArena prompt, which has no answer of its own.
_VISION_OUTPUT_TOKENS = 128
KTRANSFORMERS = "ktransformers"
# A bench is ended after so many seconds.
LIMIT_S = 4 * 3600
# The limits of vLLM's client for a ShareGPT prompt with its answer, and for a prompt at least.
_VLLM_BOTH, _VLLM_MIN = 2048, 4
_SGLANG_MIN_ANSWER = 4
_CONTEXT_FIX = "shorten them, or raise kimi_context and apply"


@dataclass(frozen=True)
class Load:
    """The requested load; None and () leave the choice to the machine.

    `requests` are those of each number of requests at once in each round, `rate_per_s` how many
    begin in a second (None: all at once), `images` the random ones with each request. `form` is
    that of a file of prompts, `sharegpt` or `visionarena`; `prompts` is their number, `pictures`
    how many of them have an image, `unanswered` how many more were left out because they have no
    answer.
    """

    profile: str | None = None
    requests: int | None = None
    rate_per_s: float | None = None
    concurrency: tuple[int, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    rounds: int = 1
    warm_up: int = 1
    chat: bool = False
    images: int = 0
    image_width: int = 1024
    image_height: int = 1024
    form: str | None = None
    prompts: int = 0
    pictures: int = 0
    unanswered: int = 0

    @property
    def has_images(self) -> bool:
        """Return whether any request has an image."""
        return bool(self.images or self.pictures)


def from_document(asked: Mapping[str, Any]) -> Load:
    """Parse the load from the control machine, which has checked it.

    Raises HostError for fields that this version does not know.
    """
    known = {name: value for name, value in asked.items() if value is not None}
    strange = sorted(set(known) - {field.name for field in fields(Load)})
    if strange:
        raise HostError(
            f"the kimi-prov on this machine does not know {', '.join(strange)} in a load",
            "run kimi-prov apply first",
        )
    return Load(**{**known, "concurrency": tuple(known.get("concurrency") or ())})


def list_levels(load: Load, planned: int) -> list[int]:
    """Return the numbers of requests at once: as requested; else 1, 4, 16, ... and the planned one.

    With a rate and nothing else there is one load, which only the number of its requests limits.
    """
    if load.concurrency:
        return list(load.concurrency)
    if load.rate_per_s is not None:
        return [count_requests(load, planned)]
    found = []
    level = 1
    while level < planned:
        found.append(level)
        level *= _STEP
    return [*found, max(1, planned)]


def count_requests(load: Load, level: int) -> int:
    """Return the requests of one load: as requested, else two rounds, three at concurrency 1."""
    if load.requests is not None:
        return load.requests
    return 3 if level == 1 else 2 * level


def choose_lengths(
    load: Load, throughput: Mapping[str, Any], context: int
) -> tuple[int | None, int | None]:
    """Return prompt and answer length in tokens; None means the length of each prompt of a file.

    As requested, else the prediction's, or shorter to save time. Raises HostError where the request
    does not fit the context.
    """
    if load.form is not None:
        given = load.output_tokens
        if given and given + 1 > context - _SPARE_TOKENS:
            raise HostError(
                f"{given} tokens of an answer do not fit the context of {context} "
                f"({_SPARE_TOKENS} are kept free)",
                _CONTEXT_FIX,
            )
        # Half of a short context is for the question and its image.
        of_image = max(1, min(_VISION_OUTPUT_TOKENS, (context - _SPARE_TOKENS) // 2))
        return None, given or (of_image if load.form == "visionarena" else None)
    prompt_tokens = int(load.input_tokens or throughput.get("input_tokens") or INPUT_TOKENS)
    answer_tokens = int(load.output_tokens or throughput.get("output_tokens") or OUTPUT_TOKENS)
    room = context - _SPARE_TOKENS
    asked = (load.input_tokens or 0) + (load.output_tokens or 0)
    if asked and asked + (load.input_tokens is None) + (load.output_tokens is None) > room:
        raise HostError(
            f"{load.input_tokens or 1} tokens and {load.output_tokens or 1} of an answer do not "
            f"fit the context of {context} ({_SPARE_TOKENS} are kept free)",
            _CONTEXT_FIX,
        )
    share = min(
        1.0, _REQUEST_S / max(_predict_seconds(throughput, prompt_tokens, answer_tokens), 1e-9)
    )
    if load.output_tokens is None:
        answer_tokens = max(_MIN_OUTPUT, int(answer_tokens * share))
        answer_tokens = max(1, min(answer_tokens, (room - (load.input_tokens or room // 2))))
    if load.input_tokens is None:
        prompt_tokens = max(_MIN_INPUT, int(prompt_tokens * share))
        prompt_tokens = max(1, min(prompt_tokens, room - answer_tokens))
    return prompt_tokens, answer_tokens


def _predict_seconds(
    throughput: Mapping[str, Any], prompt_tokens: int, answer_tokens: int
) -> float:
    """Predict the seconds of one request at the planned concurrency; 0 without a prediction."""
    prefill = (throughput.get("prefill_tok_s") or {}).get("expected")
    decode = (throughput.get("decode_tok_s") or {}).get("expected")
    waiting = prompt_tokens * int(throughput.get("concurrency") or 1) / prefill if prefill else 0.0
    return float(waiting + (answer_tokens / decode if decode else 0.0))


def find_refusal(load: Load, plan: MachinePlan, read: Callable[[str], str]) -> HostError | None:
    """Return what of a load the engine's own client, or the model, cannot do; None for nothing.

    `read` returns the text of a file of this machine.
    """
    if load.has_images and not _has_vision(plan, read):
        return HostError(
            f"{plan['model'].get('name', 'the model')} takes no images",
            "leave out --images, and images in --prompts",
        )
    if plan["engine"]["name"] == KTRANSFORMERS:
        return _find_too_long(load, plan) or _find_sglang_refusal(load, plan)
    return _find_too_long(load, plan) or _find_vllm_refusal(load)


def _find_too_long(load: Load, plan: MachinePlan) -> HostError | None:
    levels = list_levels(load, int(plan["throughput"]["concurrency"]))
    asked = load.rounds * sum(count_requests(load, level) for level in levels)
    if load.rate_per_s is None or asked / load.rate_per_s <= LIMIT_S:
        return None
    return HostError(
        f"{asked} requests at {load.rate_per_s:g} a second take "
        f"{asked / load.rate_per_s / 3600:.1f} hours; a bench is ended after {LIMIT_S // 3600}",
        "raise --rate, or give fewer --requests, --rounds or numbers in --concurrency",
    )


def _find_vllm_refusal(load: Load) -> HostError | None:
    most = _VLLM_BOTH - _VLLM_MIN
    if not load.form or (load.output_tokens or 0) <= most:
        return None
    return HostError(
        f"vLLM's bench client skips every prompt of a file that has over {_VLLM_BOTH} "
        f"tokens with its answer, so answers of {load.output_tokens} leave none",
        f"give --answer-tokens {most} or fewer",
    )


def _find_sglang_refusal(load: Load, plan: MachinePlan) -> HostError | None:
    if load.form and load.output_tokens and load.output_tokens < _SGLANG_MIN_ANSWER:
        return HostError(
            f"sglang's bench client takes no answers of {load.output_tokens} tokens to prompts of "
            "a file",
            f"give --answer-tokens {_SGLANG_MIN_ANSWER} or more",
        )
    if load.has_images:
        return HostError(
            "sglang's bench client looks for a model's image processor under its served name, on a "
            "hub, and takes no images from a file of conversations",
            "measure images with vLLM, or leave them out",
        )
    levels = list_levels(load, int(plan["throughput"]["concurrency"]))
    most = max(count_requests(load, level) for level in levels)
    if load.form and most > load.prompts:
        return HostError(
            f"sglang's bench client asks each prompt of a file once: the file has {load.prompts}, "
            f"and a load of this sweep {most} requests",
            f"give --requests {load.prompts}, or a file of more prompts",
        )
    if load.chat and "--reasoning-parser" in plan["instances"][0]["argv"]:
        return HostError(
            "sglang's bench client does not see tokens of reasoning: in a chat its first "
            "token would be the one after them",
            "give --completions, which have all tokens"
            + (f"; it wins over the profile {load.profile}" if load.profile else ""),
        )
    return None


def _has_vision(plan: MachinePlan, read: Callable[[str], str]) -> bool:
    try:
        config = json.loads(read(f"{plan['model']['serve_dir']}/config.json"))
    except (OSError, ValueError):
        return True
    return isinstance(config, dict) and "vision_config" in config


def describe_load(load: Load, shape: tuple[int | None, int | None]) -> dict[str, Any]:
    """Describe the load for the document, with the chosen values filled in."""
    return {
        "profile": load.profile,
        "requests": load.requests,
        "rate_per_s": load.rate_per_s,
        "rounds": load.rounds,
        "chat": load.chat or load.has_images,
        "images": load.images,
        "image_width": load.image_width if load.images else None,
        "image_height": load.image_height if load.images else None,
        "prompts": load.form,
        "prompts_of_file": load.prompts or None,
        "images_of_file": load.pictures or None,
        "unanswered_of_file": load.unanswered if load.form else None,
        "input_tokens": shape[0],
        "output_tokens": shape[1],
        # Lengths that the user gave are not those of the plan's prediction.
        "chosen_lengths": load.input_tokens is None and load.output_tokens is None,
    }
