"""What the engine answers to fixed questions, with the probabilities of its next tokens.

A candidate computes the same numbers in another order or format: its probabilities differ a
little. How much says whether it still answers as what serves; the control machine compares.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.engine import ready

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.tune.jobs import TokenChances

# Of several kinds, so that a fault in one part of the model shows.
_QUESTIONS = (
    "Name the capital of France.",
    "What is 17 times 23?",
    "Write a Python function that reverses a list.",
    "Translate into German: the weather is fine today.",
)
# Tokens of each answer, and likely tokens of each place: both engines give so many.
_TOKENS, _TOP = 4, 5
_TIMEOUT_S = 600.0


def ask(plan: MachinePlan) -> TokenChances | None:
    """Return, for each question, the log probabilities of the likely tokens at each place.

    None where the engine answers without them. Raises HostError where it does not answer.
    """
    port = plan["instances"][0]["port"]
    if port is None:
        raise HostError("this host's engine has no port of its own", "run this on the head")
    rows = [_ask_one(port, plan["model"]["served_names"][0], text) for text in _QUESTIONS]
    return None if None in rows else [row for row in rows if row]


def _ask_one(port: int, model: str, text: str) -> list[dict[str, float]] | None:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": _TOKENS,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": _TOP,
    }
    problem, answer = ready.send_request(
        port, "POST", "/v1/chat/completions", json.dumps(body), timeout_s=_TIMEOUT_S
    )
    if problem:
        raise HostError(f"it does not answer: {problem}")
    try:
        rows = json.loads(answer)["choices"][0]["logprobs"]["content"]
        return [_read_place(row["top_logprobs"]) for row in rows]
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _read_place(likely_tokens: list[Mapping[str, float]]) -> dict[str, float]:
    likely = {str(one["token"]): float(one["logprob"]) for one in likely_tokens}
    if not all(map(math.isfinite, likely.values())):
        raise HostError("its probabilities of tokens are no numbers")
    return likely
