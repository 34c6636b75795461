"""Sends the suite's requests within limits of tokens and time, and reads the answers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Union

from kimi_prov.on_host.endpoint import api_client
from kimi_prov.on_host.endpoint.api_client import ApiError

if TYPE_CHECKING:
    from kimi_prov.on_host.endpoint.checks import Subject

Body = dict[str, Any]
Messages = Sequence[Mapping[str, Any]]
# What no part of an answer may show: the text forms of a tokenizer's special tokens.
MARKS = ("<think>", "</think>", "<|im_", "<|tool_call", "[EOS]", "[BOS]", "<|media_")
INSTANT: Body = {"chat_template_kwargs": {"thinking": False}, "temperature": 0}
_MIN_S = 1.0


class OutOfTimeError(ApiError):
    """The check's time was over before it was done."""


@dataclass(frozen=True)
class Call:
    """A tool call of an answer; `arguments` as they came, which may not be JSON."""

    id: str
    name: str
    arguments: str

    def values(self) -> dict[str, Any]:
        """Return the arguments; empty where they are not a JSON object."""
        try:
            found = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})"


@dataclass(frozen=True)
class Answer:
    """An answer. `finish`: the engine's word for why it ended.

    `cached_tokens`: of the prompt, those found in a cache; 0 where the engine does not report it.
    """

    text: str = ""
    thought: str = ""
    calls: tuple[Call, ...] = ()
    finish: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    cached_tokens: int = 0

    def describe(self) -> str:
        """Describe the result for a report: the answer, or why there is none."""
        if self.calls:
            return " ".join([*map(str, self.calls), self.text]).strip()
        if self.text.strip():
            return self.text
        if self.finish == "length":
            return f"no answer within {self.tokens} tokens, reasoning that ends: {self.thought}"
        return f"no text; reasoning: {self.thought}" if self.thought else "no text"

    def marks(self) -> list[str]:
        """Return the special tokens' text forms in the answer or its reasoning."""
        return [mark for mark in MARKS if mark in self.text or mark in self.thought]


Found = Union[Answer, ApiError]


def describe_answer(found: Found) -> str:
    """Return the result of a question as text for a report."""
    return str(found) if isinstance(found, ApiError) else found.describe()


class Asker:
    """Asks one served model for one check. `seconds`: for all requests of the check."""

    def __init__(self, subject: Subject, *, context: int, at_once: int, seconds: float) -> None:
        self.subject = subject
        self.context = context
        self.at_once = at_once
        self._seconds = seconds
        self._until = time.monotonic() + seconds

    def body(self, asked: str | Messages, tokens: int, **more: object) -> Body:
        """Return a request, sampled with a fixed seed; in thinking mode as its makers advise."""
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
        sampled: Body = {"temperature": 1, "top_p": 0.95, "seed": 1}
        return {
            "model": self.subject.model,
            "messages": messages,
            "max_tokens": max(1, min(tokens, self.context // 2)),
            **(sampled if self.subject.reasons else {"temperature": 0}),
            **more,
        }

    def ask(self, asked: str | Messages, tokens: int, **more: object) -> Answer:
        """Request one complete answer. Raises ApiError."""
        return self.send(self.body(asked, tokens, **more))

    def send(self, body: Body) -> Answer:
        """Send a request, streamed where it says so. Raises ApiError."""
        endpoint = replace(self.subject.endpoint, timeout_s=self._find_time_left())
        try:
            if body.get("stream"):
                options = {"stream_options": {"include_usage": True}}
                pieces = api_client.stream(endpoint, self.subject.key, {**body, **options})
                return assemble_stream([piece for _, piece in self._limit_time(pieces) if piece])
            return parse_reply(api_client.request_chat(endpoint, self.subject.key, body))
        except ApiError as error:
            if time.monotonic() >= self._until:
                raise self._make_out_of_time_error() from error
            raise

    def many(self, bodies: Sequence[Body], *, all_at_once: bool = False) -> list[Found]:
        """Send several requests, as many at once as the engine takes; return answers or errors.

        `all_at_once`: more than it takes, so that it also has to keep them apart in its queue.
        """
        most = len(bodies) if all_at_once else self.at_once
        with ThreadPoolExecutor(max_workers=max(1, min(most, len(bodies)))) as pool:
            return list(pool.map(self._try, bodies))

    def _try(self, body: Body) -> Found:
        try:
            return self.send(body)
        except ApiError as error:
            return error

    def _find_time_left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise self._make_out_of_time_error()
        return max(_MIN_S, left)

    def _limit_time(self, pieces: Any) -> Any:  # noqa: ANN401
        for piece in pieces:
            self._find_time_left()
            yield piece

    def _make_out_of_time_error(self) -> OutOfTimeError:
        return OutOfTimeError(f"no answer within the check's {self._seconds:.0f} s")


def parse_reply(reply: api_client.Reply) -> Answer:
    """Parse a complete answer. Raises ApiError for anything else."""
    document = reply.json()
    choice = _get_first(document.get("choices"))
    message = choice.get("message")
    if reply.status != 200 or not isinstance(message, dict):
        raise ApiError(f"HTTP {reply.status}: {reply.body[:300].decode(errors='replace')}")
    return _build_answer(message, choice, document)


def assemble_stream(pieces: Sequence[Mapping[str, Any]]) -> Answer:
    """Join a streamed answer. Raises ApiError where the stream ends with an error."""
    texts: dict[str, str] = {"content": "", "reasoning": ""}
    calls: dict[int, dict[str, str]] = {}
    finish = ""
    usage: Mapping[str, Any] = {}
    for piece in pieces:
        if piece.get("error"):
            raise ApiError(f"the stream ended with an error: {str(piece['error'])[:300]}")
        usage = piece.get("usage") or usage
        choice = _get_first(piece.get("choices"))
        delta = _as_object(choice.get("delta"))
        texts["content"] += _as_text(delta.get("content"))
        texts["reasoning"] += _as_text(delta.get("reasoning") or delta.get("reasoning_content"))
        for part in _as_dicts(delta.get("tool_calls")):
            at = part.get("index")
            known = calls.setdefault(at if isinstance(at, int) else 0, dict.fromkeys(_CALL, ""))
            function = _as_object(part.get("function"))
            known["id"] = known["id"] or _as_text(part.get("id"))
            known["name"] += _as_text(function.get("name"))
            known["arguments"] += _as_text(function.get("arguments"))
        finish = _as_text(choice.get("finish_reason")) or finish
    made = [{"id": c["id"], "function": c} for _, c in sorted(calls.items())]
    return _build_answer({**texts, "tool_calls": made}, {"finish_reason": finish}, {"usage": usage})


_CALL = ("id", "name", "arguments")


def _build_answer(
    message: Mapping[str, Any], choice: Mapping[str, Any], document: Mapping[str, Any]
) -> Answer:
    usage = _as_object(document.get("usage"))
    calls = []
    for row in _as_dicts(message.get("tool_calls")):
        function = _as_object(row.get("function"))
        made = Call(_as_text(row.get("id")), _as_text(function.get("name")), "")
        calls.append(replace(made, arguments=_as_text(function.get("arguments"))))
    return Answer(
        text=_as_text(message.get("content")),
        thought=_as_text(message.get("reasoning") or message.get("reasoning_content")),
        calls=tuple(calls),
        finish=_as_text(choice.get("finish_reason")),
        prompt_tokens=_get_count(usage, "prompt_tokens"),
        tokens=_get_count(usage, "completion_tokens"),
        cached_tokens=_get_count(_as_object(usage.get("prompt_tokens_details")), "cached_tokens"),
    )


def _get_first(value: object) -> dict[str, Any]:
    found = _as_dicts(value)
    return found[0] if found else {}


def _as_dicts(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _as_object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _get_count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value > 0 else 0
