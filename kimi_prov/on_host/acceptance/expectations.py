"""What a plan promises of the served model, as far as the suite checks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import MachinePlan

# The requests at once of an engine for which a plan has no number.
_AT_ONCE = 8
_MAX_AT_ONCE = 16
# The endings of the classes of models that take more than text, in transformers' names.
_SEES = "ForConditionalGeneration"
# As small as any context that is served.
_CONTEXT = 4096
_NO_CACHE = ("--no-enable-prefix-caching", "--disable-radix-cache")


@dataclass(frozen=True)
class Expectations:
    """`cache`: whether a prefix cache is planned; `copies`: how many requests are spread over.

    Rates in tokens per second, of decoding for one of the requests at once.
    """

    engine: str
    context: int
    at_once: int
    vision: bool
    speculative: str
    cache: bool
    copies: int
    prefill_tok_s: float | None
    decode_tok_s: float | None


def from_plan(plan: MachinePlan) -> Expectations:
    """Read a plan, also of an earlier version."""
    model, instances = plan["model"], plan["instances"]
    speeds = plan.get("throughput") or {}
    argv = [word for instance in instances for word in instance["argv"]]
    engine = str((plan.get("engine") or {}).get("name") or "vllm")
    draft = plan.get("speculative")
    data = int((plan.get("parallel") or {}).get("data") or 1)
    return Expectations(
        engine=engine,
        context=int(model.get("context") or _CONTEXT),
        at_once=min(_MAX_AT_ONCE, int(speeds.get("concurrency") or _AT_ONCE)),
        vision=str(model.get("architecture") or "").endswith(_SEES),
        speculative=str(draft.get("name") or "") if draft else "",
        cache=_has_cache(engine, argv),
        copies=max(1, len(instances)) * data,
        prefill_tok_s=_get_expected(speeds.get("prefill_tok_s")),
        decode_tok_s=_get_expected(speeds.get("decode_tok_s")),
    )


def _has_cache(engine: str, argv: list[str]) -> bool:
    """Return whether the plan has a prefix cache: sglang's is on unless it is switched off."""
    if any(word in argv for word in _NO_CACHE):
        return False
    return engine == "ktransformers" or "--enable-prefix-caching" in argv


def _get_expected(speed: object) -> float | None:
    value = speed.get("expected") if isinstance(speed, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and value > 0 else None
