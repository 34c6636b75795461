"""Seconds until the first token: the prompt, what it waits for, and the step it falls into.

An engine takes a new prompt in before it goes on with the answers, one prompt after another. So a
request waits for the prompts that came before its own. Each of N users asks once in the time from
a request's prompt to the end of its answer, N prompts and the steps of an answer:

    cycle = N x prompt + output tokens x step,     share = (N - 1) x prompt / cycle

Users ask when they like and their prompts are about equally long, so the mean wait is that of an
M/D/1 queue: share x prompt / (2 (1 - share)).

Decides: the time to the first token.
Held by: tests/unit/planner/throughput/test_first_token.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kimi_prov.planner.throughput.inputs import Range, Serving

# Of the others, who at worst ask at the same time: benches and shifts begin together.
_TOGETHER = 0.1


@dataclass(frozen=True)
class Queue:
    """What a prompt meets: seconds of another's prompt, and of a step that answers all."""

    prompt: float
    step: float

    def wait(self, serving: Serving) -> float:
        """Mean seconds before the prompt's turn: less than half of the others' prompts."""
        alone = self.prompt + serving.output_tokens * self.step
        return serving.others * self.prompt / 2 * self.prompt / alone

    def longest(self, serving: Serving) -> float:
        """Mean seconds where prompts differ much in length (M/M/1), or some come together."""
        together = serving.others * _TOGETHER * self.prompt / 2
        return max(2 * self.wait(serving), together)


def estimate_first_token(serving: Serving, prefill: Range, queue: Queue | None = None) -> Range:
    """Give the seconds from a request to its first token; without a queue, of one alone.

    `prefill` in tokens a second. At best no prompt is in the way: users that ask again as soon as
    they have their answers.
    """
    step = queue.step if queue and serving.others else 0.0
    wait, longest = (queue.wait(serving), queue.longest(serving)) if queue else (0.0, 0.0)
    once = serving.input_tokens / prefill.expected + step
    fast, slow = prefill.high / prefill.expected, prefill.expected / prefill.low
    return Range(once / fast, once + wait, (once + longest) * slow)
