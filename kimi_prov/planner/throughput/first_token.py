"""Seconds until the first token: the prompt, what it waits for, and the step it falls into.

An engine computes new prompts one after another, before it continues the answers. So a request
waits for the prompts that came before its own. Each of N users sends one request in a cycle, which
takes N prompts and the steps of an answer:

    cycle = N x prompt + output tokens x step,     share = (N - 1) x prompt / cycle

Users ask at random times and their prompts are about equally long, so the mean wait is that of an
M/D/1 queue: share x prompt / (2 (1 - share)).

Decides: the time to the first token.
Held by: tests/unit/planner/throughput/test_first_token.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kimi_prov.planner.throughput.inputs import Range, Serving

# Share of the other users who at worst ask at the same time, as when a bench or a shift begins.
_TOGETHER = 0.1


@dataclass(frozen=True)
class Queue:
    """What a prompt waits for: seconds of another prompt, and of a step of all answers."""

    prompt: float
    step: float

    def wait(self, serving: Serving) -> float:
        """Compute the mean wait in seconds: less than half of the other prompts."""
        alone = self.prompt + serving.output_tokens * self.step
        return serving.others * self.prompt / 2 * self.prompt / alone

    def longest(self, serving: Serving) -> float:
        """Compute the wait where prompts differ much in length (M/M/1), or come together."""
        together = serving.others * _TOGETHER * self.prompt / 2
        return max(2 * self.wait(serving), together)


def estimate_first_token(serving: Serving, prefill: Range, queue: Queue | None = None) -> Range:
    """Estimate the seconds from a request to its first token; without `queue`, of one request.

    `prefill` is in tokens a second. At best no prompt waits, as where each user asks again as soon
    as the answer is complete.
    """
    step = queue.step if queue and serving.others else 0.0
    wait, longest = (queue.wait(serving), queue.longest(serving)) if queue else (0.0, 0.0)
    once = serving.input_tokens / prefill.expected + step
    fast, slow = prefill.high / prefill.expected, prefill.expected / prefill.low
    return Range(once / fast, once + wait, (once + longest) * slow)
