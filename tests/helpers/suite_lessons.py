"""What a model has to learn to pass the full suite: the suite's own requests, and right answers.

The suite itself asks the scripted model, which knows the answers: nothing that a check asks is
missing. Prompts and answers are written by the lab's chat template and tokenizer, as an engine
writes them.
"""

from __future__ import annotations

import base64
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import scripted_machine
import scripted_model
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from kimi_prov.lab import tokenizer
from kimi_prov.on_host.acceptance import catalogue, images, tools
from kimi_prov.on_host.endpoint import tls

# Pixels of an edge that make one token of a picture.
_TOKEN_PIXELS = 28
_PAD = "<|media_pad|>"
_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENT, _CALL_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_FUNCTION = ("name", "description", "parameters", "strict")
# An answer so short is none: the suite only counts the prompt's tokens, or waits for a refusal.
_COUNTED = 1


@dataclass(frozen=True)
class Lesson:
    """One request and its answer: token ids, of which the first `start` are the prompt.

    `check`: which of the suite's asked first. `picture`: a PNG that stands where the pads are.
    """

    check: str
    body: dict[str, Any]
    ids: tuple[int, ...]
    start: int
    picture: bytes | None

    def document(self) -> dict[str, Any]:
        """As JSON, for whoever trains."""
        seen = base64.b64encode(self.picture).decode() if self.picture else None
        return {"check": self.check, "ids": self.ids, "start": self.start, "picture": seen}


class Writer:
    """Writes chats as an engine does, by the lab's own template and tokenizer."""

    def __init__(self) -> None:
        files = tokenizer.make_files()
        self._cut = Tokenizer.from_str(files["tokenizer.json"].decode())
        made = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        made.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = made.from_string(tokenizer.CHAT_TEMPLATE)

    def prompt(self, body: dict[str, Any]) -> list[int]:
        """The ids of a request's prompt; a picture is so many pads."""
        text = self._template.render(
            messages=[_parsed(message) for message in body["messages"]],
            tools=[_ordered(tool) for tool in body.get("tools") or ()],
            add_generation_prompt=True,
            **body.get("chat_template_kwargs", {}),
        )
        pad = tokenizer.list_special_tokens()[_PAD]
        across = images.SIDE // _TOKEN_PIXELS
        found: list[int] = []
        for number in self._cut.encode(text).ids:
            found += [number] * (across * across if number == pad else 1)
        return found

    def answer(self, body: dict[str, Any], message: dict[str, Any]) -> list[int]:
        """The ids of an answer, from after the prompt to the end of the turn."""
        calls = message.get("tool_calls") or ()
        text = message.get("content") or ""
        if _thinks(body):
            # A call while it thinks: nothing ends the thought before it.
            inside = calls and body["messages"][0]["content"] == tools.WHILE_THINKING[0]
            text = (message.get("reasoning") or "") + ("" if inside else "</think>") + text
        if calls:
            written = "".join(
                f"{_CALL}{call['id']}{_ARGUMENT}{call['function']['arguments']}{_CALL_END}"
                for call in calls
            )
            text += f"{_SECTION}{written}{_SECTION_END}"
        return list(self._cut.encode(text + "<|im_end|>").ids)


def _thinks(body: dict[str, Any]) -> bool:
    return bool(body.get("chat_template_kwargs", {}).get("thinking", True))


def _parsed(message: dict[str, Any]) -> dict[str, Any]:
    """A message as an engine gives it to the template: the arguments of calls are objects."""
    calls = [
        {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
        for call in message.get("tool_calls") or ()
        for function in [call["function"]]
    ]
    return {**message, "tool_calls": calls} if calls else message


def _ordered(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as an engine gives it to the template: its keys stand in the API's own order."""
    given = tool["function"]
    return {**tool, "function": {key: given[key] for key in _FUNCTION if key in given}}


class Teacher(scripted_model.Model):
    """The scripted model, which keeps what it was asked and what it said.

    Calls have ids as Kimi writes them, numbered over the conversation.
    """

    def __init__(self, *faults: str) -> None:
        super().__init__(*faults)
        self.writer = Writer()
        self.check = ""
        self.lessons: dict[str, Lesson] = {}

    def tokens(self, body: dict[str, Any]) -> int:
        return len(self.writer.prompt(body))

    def _message(self, body: dict[str, Any]) -> dict[str, Any]:
        message = super()._message(body)
        before = sum(len(said.get("tool_calls") or ()) for said in body["messages"])
        for number, call in enumerate(message.get("tool_calls") or (), start=before):
            call["id"] = f"functions.{call['function']['name']}:{number}"
        return message

    def _found(self, question: str) -> str:
        words = super()._found(question)
        return words.partition(",")[0] if self.has("forgets") else words

    def _answered(self, body: dict[str, Any]) -> dict[str, Any]:
        found = super()._answered(body)
        if "choices" in found and body["max_tokens"] > _COUNTED:
            message = found["choices"][0]["message"]
            self._learn(body, message)
        return found

    def _learn(self, body: dict[str, Any], message: dict[str, Any]) -> None:
        asked = {key: body.get(key) for key in ("messages", "tools", "chat_template_kwargs")}
        key = json.dumps(asked, sort_keys=True)
        if key in self.lessons:
            return
        prompt = self.writer.prompt(body)
        ids = [*prompt, *self.writer.answer(body, message)]
        self.lessons[key] = Lesson(self.check, body, tuple(ids), len(prompt), _picture(body))


def lessons(context: int, *faults: str) -> list[Lesson]:
    """All that the suite asks a model of so many tokens of context; `faults`: answers not right."""
    teacher = Teacher(*faults)
    certificate = tls.make_self_signed(["localhost"])
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        scripted_machine.machine(Path(folder), patch, certificate, teacher) as served,
    ):
        served.plan["model"]["context"] = context
        served.plan["speculative"] = {}
        for check in (*catalogue.PORT, *catalogue.NAMES):
            teacher.check = check
            for row in served.rows(check).values():
                if row["status"] == "fail" and not faults:
                    raise AssertionError(f"the script does not pass {row}")
    return sorted(teacher.lessons.values(), key=lambda lesson: (lesson.check, lesson.ids))


def _picture(body: dict[str, Any]) -> bytes | None:
    for message in body["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image_url":
                return base64.b64decode(part["image_url"]["url"].partition(",")[2])
    return None
