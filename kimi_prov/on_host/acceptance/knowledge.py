"""Facts that no revision of a model gets wrong, and problems that need a thought."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov.on_host.acceptance.answers import Answer, Asker, Found, describe_answer
from kimi_prov.on_host.acceptance.verdicts import Verdict, Wrong, judge_answers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Question = tuple[str, str]

# A question, and the word or number that its answer must contain.
FACTS: tuple[Question, ...] = (
    ("What is the chemical symbol of silver? Answer with the symbol alone.", "Ag"),
    ("Which planet is the largest of the solar system? Answer with one word.", "Jupiter"),
    ("What is the capital of Canada? Answer with one word.", "Ottawa"),
    ("In which year did the first person walk on the Moon? Answer with the number.", "1969"),
    ("Who wrote the play Hamlet? Answer with the family name.", "Shakespeare"),
    ("How many sides does a hexagon have? Answer with the number alone.", "6"),
    ("What is 144 divided by 12? Answer with the number alone.", "12"),
    (
        (
            "Which gas do plants take in to grow: oxygen, or carbon dioxide? Answer with the name "
            "of the one gas alone."
        ),
        "carbon dioxide",
    ),
    ("What is the German word for water? Answer with one word.", "Wasser"),
    ("Which ocean lies between Europe and North America? Answer with one word.", "Atlantic"),
    (
        (
            "What does the Unix command `pwd` print? Answer with one word: directory, date, or "
            "user."
        ),
        "directory",
    ),
    # "What is the formula of water? Answer with the formula alone."
    (
        (
            "\u6c34\u7684\u5316\u5b66\u5f0f\u662f\u4ec0\u4e48\uff1f"
            "\u53ea\u56de\u7b54\u5316\u5b66\u5f0f\u3002"
        ),
        "H2O",
    ),
)  # fmt: skip
PROBLEMS: tuple[Question, ...] = (
    ("A farmer has 17 sheep. All but 9 run away. How many are left? Answer with the number.", "9"),
    (
        (
            "Tom is taller than Ann. Ann is taller than Bob. Who is shortest? Answer with the "
            "one name alone."
        ),
        "Bob",
    ),
    (
        (
            "A train leaves at 14:35 and arrives at 17:10. How many minutes does it take? "
            "Answer with the number."
        ),
        "155",
    ),
    ("Today is Wednesday. Which day is it in 100 days? Answer with one word.", "Friday"),
    ("What is the sum of the odd numbers from 1 to 99? Answer with the number.", "2500"),
    (
        (
            "A snail climbs 3 m each day and slips 2 m each night. On which day is it at the top "
            "of a wall of 10 m? Answer with the number."
        ),
        "8",
    ),
)
# The other choices of a question, by the right one: an answer with all choices is wrong.
_RIVALS: dict[str, Sequence[str]] = {
    "carbon dioxide": ("oxygen",),
    "directory": ("date", "user"),
    "Bob": ("Tom", "Ann"),
}
# Of hard questions even a good model may miss one.
_PROBLEMS_MISSED = 1
_TOKENS = 4096
# A command of LaTeX around a text: \boxed{155}, \mathrm{H_2O}.
_COMMAND = re.compile(r"\\[A-Za-z]+\{([^{}]*)\}")
# Subscript digits and digits with separators are digits as well.
_PLAIN = str.maketrans("\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089", "0123456789")


def check_facts(asker: Asker) -> Verdict:
    """Ask facts of several kinds; all answers have to be right."""
    return _judge_answers(FACTS, _ask_all(asker, FACTS), "facts right")


def check_problems(asker: Asker) -> Verdict:
    """Ask problems of several steps; one may be missed."""
    found = _ask_all(asker, PROBLEMS)
    return _judge_answers(PROBLEMS, found, "problems solved", allowed=_PROBLEMS_MISSED)


def _ask_all(asker: Asker, questions: Sequence[Question]) -> Sequence[Found]:
    return asker.many([asker.body(question, _TOKENS) for question, _ in questions])


def _judge_answers(
    questions: Sequence[Question], found: Sequence[Found], what: str, *, allowed: int = 0
) -> Verdict:
    wrong = [
        Wrong(question, expected, describe_answer(answer))
        for (question, expected), answer in zip(questions, found)
        if not (
            isinstance(answer, Answer)
            and is_choosing(answer.text, expected, _RIVALS.get(expected, ()))
        )
    ]
    return judge_answers(len(questions), wrong, what, allowed=allowed)


def is_choosing(text: str, expected: str, rivals: Iterable[str]) -> bool:
    """Return whether an answer has the expected word and none of its rivals."""
    return has_word(text, expected) and not any(
        has_word(text, rival) for rival in rivals if rival != expected
    )


def has_word(text: str, expected: str) -> bool:
    """Return whether an answer has the expected word or number, as a word of its own."""
    plain, found = text.translate(_PLAIN), 1
    while found:  # From the inside: one command of LaTeX may contain another.
        plain, found = _COMMAND.subn(r"\1", plain)
    plain = re.sub(r"[_{}$*`]", "", plain)
    plain = re.sub(r"(?<=\d)\\[,!:; ](?=\d{3}(?!\d))", "", plain)
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", plain)
    ordinal = "(?:st|nd|rd|th)?" if expected.isdigit() else ""
    pattern = rf"(?<![0-9A-Za-z.]){re.escape(expected)}{ordinal}(?![0-9A-Za-z]|\.\d)"
    return re.search(pattern, plain, re.IGNORECASE) is not None
