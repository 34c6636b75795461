"""Every check of the full suite, as data: its name, what it needs, and who runs it.

Decides: what `verify --suite full` asks, and how answers are judged (the list of checks).
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Callable, Optional

from kimi_prov.on_host.acceptance import (
    counters,
    images,
    knowledge,
    needles,
    output_forms,
    programs,
    tokens,
    tools,
)
from kimi_prov.on_host.acceptance.answers import Asker
from kimi_prov.on_host.acceptance.verdicts import Verdict, make_skip
from kimi_prov.on_host.endpoint import checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.on_host.acceptance.expectations import Expectations
    from kimi_prov.on_host.acceptance.target import MachineTarget
    from kimi_prov.on_host.endpoint.checks import Subject

# Seconds for all requests of a check. An answer with a long thought takes minutes on CPUs.
_LIMIT_S = 900.0
NEEDLE_S = 1800.0
NEEDLES = "needles"
# Seconds of a check's longest answer. A plan's speed is an estimate: an answer may take longer.
_MAX_TOKENS = 4096
_SLACK = 1.5
# Longer than any context, in thousands of tokens.
_MAX_K = 2000


@dataclass(frozen=True)
class Exam:
    """One served model: what is tested, what is expected, and how its machine is reached."""

    subject: Subject
    promise: Expectations
    target: MachineTarget

    def asker(self, seconds: float) -> Asker:
        """Return the client for one check, with its own time limit."""
        promise = self.promise
        return Asker(
            self.subject, context=promise.context, at_once=promise.at_once, seconds=seconds
        )


Judge = Callable[[Exam, Asker], Verdict]
Unable = Callable[[Exam], Optional[str]]


@dataclass(frozen=True)
class Check:
    """`meant`: its answers need a meaning, so it is not run with random weights.

    `alone`: runs while nothing else of the suite does, because it measures, or uses the machine.
    `unable`: why it cannot be run on this model, None where it can. `answers`: how many it
    requests; `in_turn`: one after the other, however many the engine takes at once.
    """

    name: str
    judge: Judge
    meant: bool = True
    alone: bool = False
    unable: Unable = lambda _: None
    limit_s: float = _LIMIT_S
    answers: int = 1
    in_turn: bool = False


def _explain_no_tools(exam: Exam) -> str | None:
    return None if exam.subject.tools else "the engine runs without a tool call parser"


def _explain_no_reasoning(exam: Exam) -> str | None:
    if not exam.subject.reasons:
        return "the engine runs without a reasoning parser"
    return _explain_no_tools(exam)


def _explain_no_vision(exam: Exam) -> str | None:
    return None if exam.promise.vision else "the model takes no images"


def _explain_no_draft(exam: Exam) -> str | None:
    return None if exam.promise.speculative else "no speculative decoding is planned"


def _explain_no_cache(exam: Exam) -> str | None:
    return None if exam.promise.cache else "no prefix cache is planned"


CHECKS: tuple[Check, ...] = (
    Check("facts", lambda _, asker: knowledge.check_facts(asker), answers=len(knowledge.FACTS)),
    Check(
        "problems",
        lambda _, asker: knowledge.check_problems(asker),
        answers=len(knowledge.PROBLEMS),
    ),
    Check(
        "image", lambda _, asker: images.check_images(asker), unable=_explain_no_vision, answers=5
    ),
    Check(
        "tool-single",
        lambda _, asker: tools.check_single(asker),
        unable=_explain_no_tools,
        answers=4,
    ),
    Check("tool-parallel", lambda _, asker: tools.check_parallel(asker), unable=_explain_no_tools),
    Check(
        "tool-in-reasoning",
        lambda _, asker: tools.check_inside_reasoning(asker),
        unable=_explain_no_reasoning,
        answers=6,
    ),
    Check(
        "tool-rounds",
        lambda _, asker: tools.check_rounds(asker),
        unable=_explain_no_tools,
        answers=6,
        in_turn=True,
    ),
    Check(
        "structured-output",
        lambda _, asker: output_forms.check_structured(asker),
        meant=False,
        answers=2,
    ),
    Check(
        "instant", lambda exam, asker: output_forms.check_instant(asker, exam.target), alone=True
    ),
    Check(
        "parallel-requests",
        lambda _, asker: output_forms.check_mixing(asker),
        alone=True,
        answers=len(output_forms.MARKERS),
    ),
    Check(
        "code",
        lambda exam, asker: programs.check_programs(asker, exam.target),
        alone=True,
        answers=3,
    ),
    Check(
        "special-tokens",
        lambda exam, asker: tokens.check_special_tokens(asker, exam.target),
        meant=False,
        alone=True,
    ),
    Check(
        "chat-template",
        lambda exam, _: tokens.check_chat_template(exam.target),
        meant=False,
        alone=True,
    ),
    Check(
        "speculative-decoding",
        lambda exam, asker: counters.check_speculative(
            asker, exam.target, meant=not exam.subject.random_weights
        ),
        meant=False,
        alone=True,
        unable=_explain_no_draft,
    ),
    Check(
        "prefix-cache",
        lambda exam, asker: counters.check_prefix_cache(
            asker, exam.target, exam.promise.engine, exam.promise.copies
        ),
        meant=False,
        alone=True,
        unable=_explain_no_cache,
    ),
)
NAMES = (*(check.name for check in CHECKS), NEEDLES)
# The checks of every suite through the port; the control machine has those of the machine.
PORT = (*(name for name, _ in checks.THROUGH_PORT), checks.WEB_UI)
BASIC, FULL = "basic", "full"
SUITES = (BASIC, FULL)


def compute_limit_s(check: Check, promise: Expectations) -> float:
    """Return the seconds of a check: more than its own where the planned speed needs more."""
    turns = check.answers if check.in_turn else -(-check.answers // max(1, promise.at_once))
    return max(check.limit_s, estimate_answer_s(turns * _MAX_TOKENS, promise))


def estimate_answer_s(tokens: int, promise: Expectations) -> float:
    """Return the seconds for writing so many tokens; 0 where no speed is planned."""
    return _SLACK * tokens / promise.decode_tok_s if promise.decode_tok_s else 0.0


def name_needle(length: int) -> str:
    """Return the name of the check for a prompt's length in tokens."""
    return f"{NEEDLES}-{needles.format_length(length)}"


@dataclass(frozen=True)
class Selection:
    """The selected checks: those that fit a pattern of `only`, if any, and none of `leave`.

    A check that is left out is reported as not run.
    """

    suite: str = BASIC
    only: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()

    def includes(self, name: str) -> bool:
        """Return whether a check is to be run."""
        return (not self.only or _is_match(name, self.only)) and not _is_match(name, self.leave)

    def names(self, subject: Subject) -> list[str]:
        """Return the checks for this model, in order, including those that are left out."""
        port = [name for name in PORT if name != checks.WEB_UI or subject.page]
        if subject.gateway:
            return [name for name in port if name not in checks.OF_ENGINE]
        return [*port, *(NAMES if self.suite == FULL else ())]


LEFT_OUT = "left out by --only or --skip"


def is_needle(name: str) -> bool:
    """Return whether a name is that of a prompt's length."""
    return name.startswith(f"{NEEDLES}-")


def may_be_needle(pattern: str) -> bool:
    """Return whether a pattern fits a length's name: the served context decides which exist."""
    return any(fnmatch(name_needle(size * 1000), pattern) for size in range(1, _MAX_K))


def expand_needles(names: Sequence[str], exam: Exam) -> list[str]:
    """Return the names with each length of the needles in place of their one name."""
    lengths = [name_needle(length) for length in needles.list_lengths(exam.promise.context)]
    return [one for name in names for one in (lengths if name == NEEDLES else [name])]


def _is_match(name: str, patterns: Sequence[str]) -> bool:
    called = (name, NEEDLES) if is_needle(name) else (name,)
    return any(fnmatch(word, pattern) for word in called for pattern in patterns)


def explain_skip(check: Check, exam: Exam) -> Verdict | None:
    """Return why a check is not run on this model; None where it is."""
    told = check.unable(exam)
    if told is None and check.meant and exam.subject.random_weights:
        told = MEANINGLESS
    return make_skip(told) if told else None


MEANINGLESS = "random weights: answers have no meaning"
BY_NAME: dict[str, Check] = {check.name: check for check in CHECKS}
