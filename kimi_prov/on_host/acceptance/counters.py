"""Checks of speculative decoding and the prefix cache by the engine's own counters."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kimi_prov.on_host.acceptance import needles
from kimi_prov.on_host.acceptance.verdicts import Verdict, make_failure, make_pass, make_skip

if TYPE_CHECKING:
    from kimi_prov.on_host.acceptance.answers import Asker
    from kimi_prov.on_host.acceptance.target import MachineTarget

Counts = Mapping[str, float]
# By engine: tokens looked up in the cache, and found there.
_CACHE = {
    "vllm": ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
    "ktransformers": ("sglang:prompt_tokens_total", "sglang:cached_tokens_total"),
}
_DRAFTS, _DRAFTED, _ACCEPTED = (
    f"vllm:spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens", "accepted_tokens")
)
# sglang has no counters, but tokens a step on average: more than one where a draft was accepted.
_ACCEPT_LENGTH = "sglang:spec_accept_length"
# Lines of a prompt that is longer than any block of a cache; a line is at most this many tokens.
_LINES = 80
_TOKENS_OF_LINE = 60
# The share of the repeated prompt; its last block may always be computed again.
_HIT_SHARE = 0.5
# The share of the requested tokens; the engine counted more where others ask as well.
_OURS = 1.1
_COUNTING = "Count from one to sixty in words, with a comma after each. Write nothing else."


def check_prefix_cache(asker: Asker, target: MachineTarget, engine: str, copies: int) -> Verdict:
    """Send one long prompt repeatedly: the engine has to find it in its cache.

    `copies`: caches over which requests are spread; with one more request, one of them gets two.
    What the engine reports in each answer takes precedence over its counters, which include other
    users' requests.
    """
    before, reason = _read_counts(target)
    if reason:
        return make_skip(f"the engine's counters cannot be read: {reason}")
    # Different in each run, so that nothing of it is in the cache before.
    lines = min(_LINES, asker.context // _TOKENS_OF_LINE)
    text = f"{secrets.token_hex(8)}\n{needles.build_prompt(lines)}"
    answers = [asker.ask(text, 1, temperature=0) for _ in range(copies + 1)]
    tokens = answers[-1].prompt_tokens
    cached = max(answer.cached_tokens for answer in answers)
    if cached >= _HIT_SHARE * max(1, tokens):
        return make_pass(
            f"{cached} of the prompt's {tokens} tokens were in the cache, by the answer"
        )
    after, reason = _read_counts(target)
    if reason:
        return make_skip(f"the engine's counters cannot be read: {reason}")
    return judge_cache(engine, sum_growth(before, after), tokens, len(answers))


def judge_cache(engine: str, grown: Counts, tokens: int, requests: int) -> Verdict:
    """Check how much the counters grew over requests with the same prompt of `tokens`.

    If other users asked meanwhile, the hits may be theirs.
    """
    names = _CACHE.get(engine, _CACHE["vllm"])
    missing = [name for name in names if name not in grown]
    if missing:
        return make_failure("the engine has no such counter", ", ".join(names), f"no {missing[0]}")
    asked, hit = (grown[name] for name in names)
    told = f"{hit:.0f} of {asked:.0f} tokens were in the cache, the prompt has {tokens}"
    if hit < _HIT_SHARE * max(1, tokens):
        return make_failure(
            "a repeated prompt is not found in the prefix cache",
            f"at least {_HIT_SHARE * tokens:.0f} tokens more in {names[1]}",
            told,
        )
    if asked > _OURS * requests * tokens:
        return make_skip(f"others asked meanwhile, and the hits may be theirs: {told}")
    return make_pass(told)


def check_speculative(asker: Asker, target: MachineTarget, *, meant: bool) -> Verdict:
    """Request a plain text: the draft has to guess, and to be right sometimes.

    `meant`: require right guesses too, which random weights do not make.
    """
    before, reason = _read_counts(target)
    if reason:
        return make_skip(f"the engine's counters cannot be read: {reason}")
    asker.ask(_COUNTING, 512, temperature=0)
    after, reason = _read_counts(target)
    if reason:
        return make_skip(f"the engine's counters cannot be read: {reason}")
    return judge_speculative(sum_growth(before, after), after, meant=meant)


def judge_speculative(grown: Counts, after: Sequence[Counts], *, meant: bool) -> Verdict:
    """Check how much the counters grew while an answer was written."""
    lengths = [row[_ACCEPT_LENGTH] for row in after if row.get(_ACCEPT_LENGTH)]
    if _DRAFTS not in grown and lengths:
        told = f"{max(lengths):.2f} tokens a step"
        if meant and max(lengths) <= 1:
            return make_failure("no guess of the draft was right", "more than 1 token a step", told)
        return make_pass(told)
    if not grown.get(_DRAFTS):
        return make_failure(
            "the draft guessed nothing",
            f"more in {_DRAFTS}",
            str(grown.get(_DRAFTS, "no counter")),
        )
    accepted, drafted = grown.get(_ACCEPTED, 0.0), grown.get(_DRAFTED, 0.0)
    told = f"{accepted:.0f} of {drafted:.0f} guessed tokens were right"
    if meant and not accepted:
        return make_failure("no guess of the draft was right", f"more in {_ACCEPTED}", told)
    return make_pass(told)


def sum_growth(before: Sequence[Counts], after: Sequence[Counts]) -> dict[str, float]:
    """Return the growth of each counter over all instances; a restarted engine's starts at 0."""
    found: dict[str, float] = {}
    for then, now in zip(before, after):
        for name, value in now.items():
            start = then.get(name, 0.0)
            found[name] = found.get(name, 0.0) + (value - start if value >= start else value)
    return found


def _read_counts(target: MachineTarget) -> tuple[list[Counts], str]:
    found = target.request("metrics")
    rows = found.get("instances")
    return (rows if isinstance(rows, list) else []), str(found["reason"])
