"""Instant mode, structured output, and requests at once that must not mix."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.acceptance.answers import INSTANT, Answer, Asker, Found, describe_answer
from kimi_prov.on_host.acceptance.knowledge import has_word
from kimi_prov.on_host.acceptance.verdicts import (
    Verdict,
    Wrong,
    judge_answers,
    make_failure,
    make_pass,
    make_skip,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.on_host.acceptance.target import MachineTarget

_INSTANT = ("What is 25 plus 17? Answer with the number alone.", "42")
# A thinking model that is told not to think answers such a question in few tokens.
_INSTANT_TOKENS = 256
# Only enumerations and truth values: a grammar of these ends, whatever the weights are.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome", "Lima", "Cairo"]},
        "warm": {"type": "boolean"},
        "scale": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "warm", "scale"],
    "additionalProperties": False,
}
_FORM = (
    "Lima has 24 degrees Celsius today, and everybody there finds that warm. Put this into JSON "
    "with the keys city, warm (true or false) and scale (celsius or fahrenheit)."
)
_FILLED = {"city": "Lima", "warm": True, "scale": "celsius"}
_THINKING_TOKENS = 4096
_FORM_TOKENS = 512
_ECHO_TOKENS = 1024
MARKERS = (
    "amber", "basalt", "cobalt", "drizzle", "ember", "falcon", "granite", "hazel",
    "indigo", "juniper", "kestrel", "lagoon", "marble", "nectar", "onyx", "pepper",
)  # fmt: skip


def check_instant(asker: Asker, target: MachineTarget) -> Verdict:
    """Ask without thinking: an answer, no reasoning, and no tokens of thinking."""
    files = target.request("files")
    if files["reason"]:
        return make_skip(f"whether the model has an instant mode is not known: {files['reason']}")
    if not files.get("instant"):
        return make_skip("the model's chat template has no switch for thinking")
    question, expected = _INSTANT
    return judge_instant(asker.ask(question, _INSTANT_TOKENS, **INSTANT), expected)


def judge_instant(answer: Answer, expected: str) -> Verdict:
    """Check an answer that was requested without thinking."""
    wanted = f"{expected}, no reasoning"
    if answer.thought:
        return make_failure("it thought, though it was told not to", wanted, answer.thought)
    if answer.marks():
        return make_failure("the marks of thinking are in the answer", wanted, answer.text)
    if not has_word(answer.text, expected):
        return make_failure("not the answer", wanted, answer.describe())
    return make_pass(f"{answer.text} ({answer.tokens} tokens, no reasoning)")


def check_structured(asker: Asker) -> Verdict:
    """Request JSON of a schema, in instant mode and, where the model thinks, after its reasoning.

    For random weights only the form is checked.
    """
    form = {
        "type": "json_schema",
        "json_schema": {"name": "weather", "strict": True, "schema": SCHEMA},
    }
    meant = not asker.subject.random_weights
    bodies = [
        asker.body(_FORM, _find_max_tokens(asker, _FORM_TOKENS), response_format=form, **INSTANT)
    ]
    if meant and asker.subject.reasons:
        bodies.append(asker.body(_FORM, _THINKING_TOKENS, response_format=form))
    return judge_structured(asker.many(bodies), meant=meant)


def _find_max_tokens(asker: Asker, tokens: int) -> int:
    """Return the token limit of an answer without thought: some models have no switch for it."""
    return _THINKING_TOKENS if asker.subject.reasons else tokens


def judge_structured(found: Sequence[Found], *, meant: bool) -> Verdict:
    """Check that answers follow the schema and, with `meant`, say what was asked."""
    wrong = []
    for answer in found:
        fault = (
            describe_answer(answer)
            if not isinstance(answer, Answer)
            else _explain_mismatch(answer.text, meant)
        )
        if fault:
            wrong.append(Wrong("JSON of the schema", json.dumps(_FILLED), fault))
    return judge_answers(len(found), wrong, "answers are JSON of the schema")


def _explain_mismatch(text: str, meant: bool) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text or "no text"
    kept = isinstance(value, dict) and set(value) == set(SCHEMA["required"])
    kept = kept and all(_is_valid(value[name], rule) for name, rule in SCHEMA["properties"].items())
    return "" if kept and (not meant or value == _FILLED) else text


def _is_valid(value: object, rule: dict[str, Any]) -> bool:
    return value in rule["enum"] if "enum" in rule else isinstance(value, bool)


def check_mixing(asker: Asker) -> Verdict:
    """Request a word many times at once; half of the answers are streamed."""
    markers = list(MARKERS)
    room = _find_max_tokens(asker, _ECHO_TOKENS)
    bodies = [
        {**asker.body(_build_echo_question(marker), room, **INSTANT), "stream": number % 2 == 1}
        for number, marker in enumerate(markers)
    ]
    return judge_mixing(markers, asker.many(bodies, all_at_once=True))


def _build_echo_question(marker: str) -> str:
    return f"Repeat this word and write nothing else: {marker}"


def judge_mixing(markers: Sequence[str], found: Sequence[Found]) -> Verdict:
    """Check answers to requests at once: each has its own word and no other."""
    wrong: list[Wrong] = []
    strange = False
    for marker, answer in zip(markers, found):
        text = answer.text if isinstance(answer, Answer) else ""
        others = [other for other in markers if other != marker and has_word(text, other)]
        strange = strange or bool(others)
        if others or not has_word(text, marker):
            wrong.append(Wrong(marker, marker, describe_answer(answer)))
    what = "requests at once have their own answer"
    verdict = judge_answers(len(markers), wrong, what)
    if strange:
        return make_failure(
            f"answers got mixed: {verdict.detail}", verdict.expected, verdict.observed
        )
    return verdict
