"""What the lab's trained model learns is what the full suite asks, written as the model's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import suite_lessons
from tokenizers import Tokenizer

from kimi_prov.lab import model_shapes, tokenizer
from kimi_prov.on_host.acceptance import catalogue, images, knowledge, output_forms, programs, tools
from kimi_prov.on_host.endpoint import checks

if TYPE_CHECKING:
    from suite_lessons import Lesson

CONTEXT = model_shapes.SEEING.context
# These ask the model nothing that it has to know.
ASK_NOTHING = {
    *("tls", "no-key-refused", "wrong-key-refused", "engine-pages-closed", "models", checks.WEB_UI),
    *("chat-template", "prefix-cache", "speculative-decoding"),
    "special-tokens",  # greets, as `chat` does
}


@pytest.fixture(scope="module")
def lessons() -> list[Lesson]:
    return suite_lessons.lessons(CONTEXT)


def read(ids: tuple[int, ...]) -> str:
    cut = Tokenizer.from_str(tokenizer.make_files()["tokenizer.json"].decode())
    return cut.decode(ids, skip_special_tokens=False)


def test_every_check_that_asks_has_a_lesson(lessons: list[Lesson]) -> None:
    assert {lesson.check for lesson in lessons} == {
        *catalogue.PORT,
        *catalogue.NAMES,
    } - ASK_NOTHING


def test_every_question_of_the_suite_is_among_them(lessons: list[Lesson]) -> None:
    asked = "\n".join(json.dumps(lesson.body["messages"], ensure_ascii=False) for lesson in lessons)
    questions = [
        *(question for question, _ in (*knowledge.FACTS, *knowledge.PROBLEMS, *checks.KNOWN)),
        *(question for question, _ in tools.SINGLE),
        *(row[0] for row in (tools.PARALLEL, tools.WHILE_THINKING, tools.ROUNDS)),
        *(task.question() for task in programs.TASKS),
        *output_forms.MARKERS,
    ]
    assert [
        text for text in questions if json.dumps(text, ensure_ascii=False)[1:-1] not in asked
    ] == []
    seen = {lesson.picture for lesson in lessons if lesson.picture}
    assert seen == {picture for _, picture, _ in images.build_questions()}


def test_a_lesson_fits_the_context_and_ends_its_turn(lessons: list[Lesson]) -> None:
    end = tokenizer.list_special_tokens()["<|im_end|>"]
    for lesson in lessons:
        assert lesson.start < len(lesson.ids) <= CONTEXT
        assert lesson.ids[-1] == end
        assert max(lesson.ids) < model_shapes.SEEING.vocab
    longest = max(len(lesson.ids) for lesson in lessons)
    assert longest > CONTEXT / 2  # words hidden in a long prompt


def test_a_thought_ends_before_a_call_but_where_the_call_is_inside_it(
    lessons: list[Lesson],
) -> None:
    for lesson in lessons:
        answer = read(lesson.ids[lesson.start :])
        if "<|tool_calls_section_begin|>" not in answer:
            continue
        inside = lesson.check == "tool-in-reasoning"
        thinks = lesson.body.get("chat_template_kwargs", {}).get("thinking", True)
        assert ("</think>" in answer) == (thinks and not inside), answer


def test_a_picture_is_as_many_tokens_as_the_processor_makes_of_it(lessons: list[Lesson]) -> None:
    pad = tokenizer.list_special_tokens()["<|media_pad|>"]
    counts = {lesson.ids.count(pad) for lesson in lessons if lesson.picture}
    assert counts == {100}
    assert {lesson.ids.count(pad) for lesson in lessons if not lesson.picture} == {0}


def test_faults_change_answers_and_no_questions(lessons: list[Lesson]) -> None:
    wrong = suite_lessons.lessons(CONTEXT, "ignorant", "mixes", "forgets")
    right = {question(lesson): lesson for lesson in lessons}
    assert {question(lesson) for lesson in wrong} == right.keys()
    changed = {lesson.check for lesson in wrong if lesson.ids != right[question(lesson)].ids}
    assert changed == {"facts", "parallel-requests", "needles"}


def question(lesson: Lesson) -> tuple[tuple[int, ...], bytes | None]:
    return lesson.ids[: lesson.start], lesson.picture
