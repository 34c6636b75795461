"""Words that are hidden in long prompts, up to the served context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.on_host.acceptance.knowledge import has_word
from kimi_prov.on_host.acceptance.verdicts import Verdict, make_failure, make_pass, make_skip
from kimi_prov.on_host.endpoint.api_client import ApiError

if TYPE_CHECKING:
    from kimi_prov.on_host.acceptance.answers import Asker

_MIN_TOKENS = 10_000
# Tokens left at the end of the context for the answer, its thought, and the template.
_ROOM_TOKENS = 2048
# The accepted share of the intended length; the text is made of whole lines.
_CLOSE = 0.9
_MARGIN = 0.98
# The depth of each word in the prompt, and the word.
NEEDLES: tuple[tuple[float, str, str], ...] = (
    (0.1, "Bergen", "copper"),
    (0.5, "Quito", "lantern"),
    (0.9, "Dakar", "velvet"),
)
_PLACES = ("harbour", "mill", "station", "library", "market", "garden", "bridge", "tower")
_THINGS = ("crates", "letters", "carpets", "bottles", "chairs", "lamps", "books", "ropes", "tiles")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_QUESTION = (
    "Above are notes of a storekeeper. What are the access words of the warehouses in Bergen, "
    "Quito and Dakar? Answer with the three words."
)


@dataclass(frozen=True)
class Scale:
    """The tokens of a prompt, by the engine's own count: `fixed`, and `line` for each line."""

    fixed: float
    line: float

    def lines(self, tokens: int) -> int:
        """Return how many lines make a prompt of so many tokens, or of slightly fewer."""
        return max(len(NEEDLES), int((tokens * _MARGIN - self.fixed) / self.line))


def count_answer_tokens(context: int) -> int:
    """Return the tokens that are left for an answer at the end of a context."""
    return min(_ROOM_TOKENS, context // 4)


def list_lengths(context: int) -> list[int]:
    """Return the prompts' lengths in tokens: 10,000, doubling, and the largest for the context."""
    most = context - count_answer_tokens(context)
    found = []
    length = _MIN_TOKENS
    while length < most * _CLOSE:
        found.append(length)
        length *= 2
    return [*found, most]


def format_length(tokens: int) -> str:
    """Format a length for a check's name: 10k, 160k."""
    return f"{tokens / 1000:.0f}k" if tokens >= 1000 else str(tokens)


def build_prompt(lines: int) -> str:
    """Return notes of so many lines with the words hidden in them, and the question."""
    notes = [_build_note(number) for number in range(lines)]
    for depth, city, word in NEEDLES:
        notes[int(depth * lines)] = f"The access word of the warehouse in {city} is {word}."
    return "\n".join([*notes, "", _QUESTION])


def _build_note(number: int) -> str:
    place = _PLACES[number * 5 % len(_PLACES)]
    thing = _THINGS[number * 7 % len(_THINGS)]
    day = _DAYS[number * 3 % len(_DAYS)]
    # Numbers of three and of two digits in every line: tokenizers cut digits by threes, and a line
    # at the end of a long prompt must have as many tokens as the measured ones.
    return f"Note {number % 900 + 100}: on {day} {number % 90 + 10} {thing} went to the {place}."


def measure_scale(asker: Asker) -> Scale:
    """Measure tokens a line by two short prompts. Raises ApiError."""
    few, more = 10, 60
    counts = [
        asker.ask(build_prompt(lines), 1, temperature=0).prompt_tokens for lines in (few, more)
    ]
    line = (counts[1] - counts[0]) / (more - few)
    if line <= 0:
        raise ApiError(f"the engine counts {counts[0]} and {counts[1]} tokens: it reports no usage")
    return Scale(max(0.0, counts[0] - few * line), line)


def check_needle(asker: Asker, tokens: int, measured: Scale) -> Verdict:
    """Ask for the words in a prompt of about so many tokens."""
    answer = asker.ask(build_prompt(measured.lines(tokens)), count_answer_tokens(asker.context))
    return judge(tokens, answer.prompt_tokens, answer.text, answer.describe())


def judge(aimed: int, counted: int, text: str, told: str) -> Verdict:
    """Check that an answer has every word, and that the prompt had the intended length."""
    words = [word for _, _, word in NEEDLES]
    if counted < aimed * _CLOSE:
        return make_failure(
            f"the prompt had {counted} tokens by the engine's count, {aimed} were intended",
            f"at least {int(aimed * _CLOSE)} tokens",
            f"{counted} tokens",
        )
    missed = [word for word in words if not has_word(text, word)]
    count = f"{len(words) - len(missed)} of {len(words)} words found in {counted} tokens"
    if missed:
        return make_failure(f"{count}, not {', '.join(missed)}", ", ".join(words), told)
    return make_pass(count)


def explain_too_slow(tokens: int, prefill_tok_s: float | None, limit_s: float) -> Verdict | None:
    """Return why a length is not tried: by the planned speed it takes longer than the limit."""
    if not prefill_tok_s or tokens / prefill_tok_s <= limit_s:
        return None
    return make_skip(
        f"the plan expects {tokens / prefill_tok_s:.0f} s for a prompt of {tokens} tokens, the "
        f"suite's limit is {limit_s:.0f} s"
    )
