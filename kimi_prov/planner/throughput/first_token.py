"""Seconds until the first token: the prompt, what it waits for, and the step it falls into.

An engine computes new prompts one after another, before it continues the answers. So a request
waits for the prompts that came before its own. Each of N users sends one request in a cycle, which
takes N prompts and the steps of an answer:

    cycle = N x prompt + output tokens x step,     share = (N - 1) x prompt / cycle

Where users ask at random times the mean wait is that of an M/D/1 queue: share x prompt / (2 (1 -
share)). Users of a bench start together, and answers of different lengths part them only slowly. It
is an assumption that as many prompts come together as N requests vary by chance, the root of N. A
request waits for half of them. Where all lengths are equal the answers end together too, and all
come again as one wave: a request waits for half of the others' prompts.

Decides: the time to the first token.
Held by: tests/unit/planner/throughput/test_first_token.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kimi_prov.planner.throughput.inputs import Range, Serving


@dataclass(frozen=True)
class Queue:
    """What a prompt waits for: seconds of another prompt, and of a step of all answers.

    `in_waves`: whether all requests come together, each time; None where nobody knows.
    """

    prompt: float
    step: float
    in_waves: bool | None = None

    def wait(self, serving: Serving) -> float:
        """Compute the mean wait in seconds."""
        wave = self.wait_in_waves(serving)
        if self.in_waves:
            return wave
        together = math.sqrt(serving.others) * self.prompt / 2
        return min(math.hypot(self.wait_at_random(serving), together), wave)

    def wait_longest(self, serving: Serving) -> float:
        """Compute the longest mean wait in seconds.

        Prompts differ much in length (M/M/1), or twice as many come together, or all of them.
        """
        twice = 2 * self.wait(serving)
        return max(twice, self.wait_in_waves(serving)) if self.in_waves is None else twice

    def wait_in_waves(self, serving: Serving) -> float:
        """Compute the mean wait in seconds where all requests come together."""
        return serving.others * self.prompt / 2

    def wait_at_random(self, serving: Serving) -> float:
        """Compute the mean wait in seconds where users ask at random times."""
        alone = self.prompt + serving.output_tokens * self.step
        return serving.others * self.prompt / 2 * self.prompt / alone


def estimate_first_token(serving: Serving, prefill: Range, queue: Queue | None = None) -> Range:
    """Estimate the seconds from a request to its first token; without `queue`, of one request.

    `prefill` is in tokens a second. At best no prompt waits, as where each user asks again as soon
    as the answer is complete. Waiting and speed vary apart from each other, so the range is as wide
    as the root of the sum of both squares, of logarithms.
    """
    step = queue.step if queue and serving.others else 0.0
    wait, longest = (queue.wait(serving), queue.wait_longest(serving)) if queue else (0.0, 0.0)
    once = serving.input_tokens / prefill.expected + step
    expected = once + wait
    fast, slow = prefill.high / prefill.expected, prefill.expected / prefill.low
    return Range(
        expected / _combine_factors(fast, expected / once),
        expected,
        expected * _combine_factors(slow, (once + longest) / expected),
    )


def _combine_factors(first: float, second: float) -> float:
    """Combine two factors that vary apart from each other."""
    return math.exp(math.hypot(math.log(first), math.log(second)))
