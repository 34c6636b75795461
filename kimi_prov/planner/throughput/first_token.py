"""Seconds until the first token: the prompt, what it waits for, and the step it falls into.

An engine computes new prompts one after another, before it continues the answers. So a request
waits for the prompts that came before its own. Each of N users sends one request in a cycle, which
takes N prompts and the steps of an answer:

    cycle = N x prompt + output tokens x step,     share = (N - 1) x prompt / cycle

Where users ask at random times, or answers differ in length, the mean wait is that of an M/D/1
queue: share x prompt / (2 (1 - share)). Where all ask at once with equal lengths, as benches do,
their answers also end together, and they come again in waves: a request waits for half of the
others' prompts. The first requests of every bench are such a wave.

Decides: the time to the first token.
Held by: tests/unit/planner/throughput/test_first_token.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kimi_prov.planner.throughput.inputs import Range, Serving


@dataclass(frozen=True)
class Queue:
    """What a prompt waits for: seconds of another prompt, and of a step of all answers."""

    prompt: float
    step: float

    def wait(self, serving: Serving) -> float:
        """Compute the mean wait in seconds: less than half of the other prompts."""
        alone = self.prompt + serving.output_tokens * self.step
        return serving.others * self.prompt / 2 * self.prompt / alone

    def wait_in_waves(self, serving: Serving) -> float:
        """Compute the mean wait in seconds where all requests come together."""
        return serving.others * self.prompt / 2

    def longest(self, serving: Serving) -> float:
        """Compute the wait where prompts differ much in length (M/M/1), or come in waves."""
        return max(2 * self.wait(serving), self.wait_in_waves(serving))


def estimate_first_token(
    serving: Serving, prefill: Range, queue: Queue | None = None, waves: float = 0.0
) -> Range:
    """Estimate the seconds from a request to its first token; without `queue`, of one request.

    `prefill` is in tokens a second, `waves` the share of requests that come together. At best no
    prompt waits, as where each user asks again as soon as the answer is complete; at worst all
    come together.
    """
    step = queue.step if queue and serving.others else 0.0
    wait, longest = (queue.wait(serving), queue.longest(serving)) if queue else (0.0, 0.0)
    if queue:
        wait += waves * (queue.wait_in_waves(serving) - wait)
    once = serving.input_tokens / prefill.expected + step
    fast, slow = prefill.high / prefill.expected, prefill.expected / prefill.low
    return Range(once / fast, once + wait, (once + longest) * slow)
