"""Tool calls: one by one, several at once, inside reasoning, and in rounds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.acceptance.answers import Answer, Asker, Call, describe_answer
from kimi_prov.on_host.acceptance.knowledge import is_choosing
from kimi_prov.on_host.acceptance.verdicts import (
    Verdict,
    Wrong,
    judge_answers,
    make_failure,
    make_pass,
)
from kimi_prov.on_host.endpoint.api_client import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TOKENS = 4096
Wanted = tuple[str, dict[str, Any]]


def _build_tool(name: str, description: str, **parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": parameters,
                "required": list(parameters),
                "additionalProperties": False,
            },
        },
    }


_CITIES = ("Oslo", "Rome", "Lima", "Cairo")
# From a list, so that no city is written with its country.
_CITY = {"type": "string", "enum": list(_CITIES)}
_NUMBER = {"type": "integer"}
TEMPERATURE = _build_tool("get_temperature", "Temperature of the air in a city, now.", city=_CITY)
TOOLS = (
    TEMPERATURE,
    _build_tool("get_time", "Time of day in a city, now.", city=_CITY),
    _build_tool("add_numbers", "Sum of two whole numbers.", first=_NUMBER, second=_NUMBER),
)
# A question, and the calls that it needs; none where no tool is useful.
SINGLE: tuple[tuple[str, tuple[Wanted, ...]], ...] = (
    ("How warm is it in Oslo now?", (("get_temperature", {"city": "Oslo"}),)),
    ("What time is it in Lima now?", (("get_time", {"city": "Lima"}),)),
    (
        "Add 4711 and 815 with the tool.",
        (("add_numbers", {"first": 4711, "second": 815}),),
    ),
    ("Write the word hello and nothing else. No tool is needed.", ()),
)
PARALLEL = (
    "How warm is it in Oslo, in Rome and in Lima now? Call the tool for all three at once.",
    tuple(("get_temperature", {"city": city}) for city in ("Oslo", "Rome", "Lima")),
)
WHILE_THINKING = (
    (
        "Think about which city is the capital of Norway, and call the tool for its temperature "
        "while you are still thinking."
    ),
    (("get_temperature", {"city": "Oslo"}),),
)
# The opposite of a guess: the answer must come from the tools.
_MEASURED = {"oslo": 31, "rome": -7}
ROUNDS = (
    (
        "Is it warmer in Oslo or in Rome now? Look up Oslo first, then Rome, one call at a time. "
        "Answer at the end with the warmer city's name alone."
    ),
    "Oslo",
)
_MAX_ROUNDS = 6
# Tries with different seeds: whether the model calls while it thinks is a matter of chance.
_SEEDS = (1, 2, 3)


def check_single(asker: Asker) -> Verdict:
    """Ask questions that need one tool of several, and one that needs none."""
    found = asker.many(
        [asker.body(question, _TOKENS, **_build_tool_request()) for question, _ in SINGLE]
    )
    wrong = [
        Wrong(question, _format_wanted(wanted), fault)
        for (question, wanted), answer in zip(SINGLE, found)
        for fault in [
            describe_answer(answer)
            if isinstance(answer, ApiError)
            else describe_misses(answer, wanted)
        ]
        if fault
    ]
    return judge_answers(len(SINGLE), wrong, "questions with the right call")


def check_parallel(asker: Asker) -> Verdict:
    """Request three calls in one answer, each with an id of its own."""
    question, wanted = PARALLEL
    answer = asker.ask(question, _TOKENS, **_build_tool_request(TEMPERATURE))
    fault = describe_misses(answer, wanted)
    if fault:
        return make_failure("not the three calls in one answer", _format_wanted(wanted), fault)
    if len({call.id for call in answer.calls}) < len(wanted):
        ids = ", ".join(call.id or "none" for call in answer.calls)
        return make_failure("calls without an id of their own", "three different ids", ids)
    return make_pass(_format_calls(answer.calls))


def check_inside_reasoning(asker: Asker) -> Verdict:
    """Request a call while the model thinks, as one answer and as a stream: none may get lost."""
    question, wanted = WHILE_THINKING
    ways = [
        (
            f"{way}, seed {seed}",
            asker.body(
                question, _TOKENS, seed=seed, stream=way == "streamed", **_build_tool_request()
            ),
        )
        for seed in _SEEDS
        for way in ("whole", "streamed")
    ]
    found = asker.many([body for _, body in ways])
    wrong = []
    for (way, _), answer in zip(ways, found):
        fault = (
            describe_answer(answer)
            if isinstance(answer, ApiError)
            else describe_lost_call(answer) or describe_misses(answer, wanted)
        )
        if fault:
            wrong.append(Wrong(way, _format_wanted(wanted), fault))
    thought = sum(bool(answer.thought) for answer in found if isinstance(answer, Answer))
    # A call that the parser has found is outside the reasoning, wherever the model wrote it.
    told = f"{thought} of them with reasoning; whether calls were written inside it cannot be seen"
    return judge_answers(len(ways), wrong, f"answers with the call, whole and streamed, {told}")


def check_rounds(asker: Asker) -> Verdict:
    """Answer the model's calls until it gives its own answer, which depends on their results."""
    question, expected = ROUNDS
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    made: list[Call] = []
    for _ in range(_MAX_ROUNDS):
        answer = asker.ask(messages, _TOKENS, **_build_tool_request(TEMPERATURE))
        if not answer.calls:
            return judge_rounds(made, answer, expected)
        made += answer.calls
        messages += [_build_call_message(answer), *map(_build_result_message, answer.calls)]
    return make_failure(
        f"no answer after {_MAX_ROUNDS} rounds of calls", expected, _format_calls(made)
    )


def judge_rounds(made: Sequence[Call], answer: Answer, expected: str) -> Verdict:
    """Check the final answer: the calls that it uses, and what it says."""
    asked = {str(call.values().get("city", "")).strip().lower() for call in made}
    if not set(_MEASURED) <= asked:
        told = f"calls: {_format_calls(made) or 'none'}; answer: {answer.describe()}"
        return make_failure(
            "answered without both calls", "calls for Oslo and Rome, then Oslo", told
        )
    if not is_choosing(answer.text, expected, _CITIES):
        return make_failure("the answer is not what the tools gave", expected, answer.describe())
    return make_pass(f"{len(made)} calls, then: {answer.text}")


def describe_misses(answer: Answer, wanted: Sequence[Wanted]) -> str:
    """Return what is wrong with an answer's calls; empty where they are the expected ones."""
    made = [(call.name, _normalize_arguments(call.values())) for call in answer.calls]
    if sorted(made, key=str) != sorted(
        ((name, _normalize_arguments(v)) for name, v in wanted), key=str
    ):
        return answer.describe()
    if not wanted and not answer.text.strip():
        return answer.describe()
    marks = answer.marks()
    return f"marks of the tokenizer in the answer: {', '.join(marks)}" if marks else ""


def describe_lost_call(answer: Answer) -> str:
    """Return that a call is in the reasoning or the text as text, where it is no call."""
    if answer.calls:
        return ""
    for where, text in (("reasoning", answer.thought), ("text", answer.text)):
        if "<|tool_call" in text or ("get_temperature" in text and '"city"' in text):
            return f"the call is lost in the {where}: {text}"
    return ""


def _build_tool_request(*tools: Mapping[str, Any]) -> dict[str, Any]:
    return {"tools": list(tools or TOOLS), "tool_choice": "auto"}


def _normalize_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in a comparable form: a model may write a city in its own case."""
    return {k: v.strip().lower() if isinstance(v, str) else v for k, v in values.items()}


def _build_call_message(answer: Answer) -> dict[str, Any]:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in answer.calls
    ]
    thought = {"reasoning": answer.thought, "reasoning_content": answer.thought}
    return {
        "role": "assistant",
        "content": answer.text,
        "tool_calls": calls,
        **(thought if answer.thought else {}),
    }


def _build_result_message(call: Call) -> dict[str, Any]:
    city = str(call.values().get("city", "")).strip().lower()
    degrees: int | None = _MEASURED.get(city)
    told = f"{degrees} degrees Celsius" if degrees is not None else "no such city"
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": told}


def _format_wanted(wanted: Sequence[Wanted]) -> str:
    told = [f"{name}({json.dumps(values)})" for name, values in wanted]
    return ", ".join(told) or "no call, and a text"


def _format_calls(made: Sequence[Call]) -> str:
    return ", ".join(map(str, made))
