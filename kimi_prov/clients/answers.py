"""Stream an answer: pieces of reasoning and of text, and its time and tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kimi_prov.on_host.endpoint import api_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The field's name in vLLM since 0.12; then in sglang and earlier vLLM.
_REASONING = ("reasoning", "reasoning_content")


@dataclass
class AnswerStats:
    """An answer's tokens by the engine's own count, and its times in seconds since the question.

    None where the engine does not report a value, or the answer was cut off.
    """

    prompt_tokens: int | None = None
    tokens: int | None = None
    first_s: float | None = None
    last_s: float | None = None
    finish: str | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second after the first one."""
        if self.tokens is None or self.first_s is None or self.last_s is None:
            return None
        took = self.last_s - self.first_s
        return (self.tokens - 1) / took if self.tokens > 1 and took > 0 else None


@dataclass(frozen=True)
class Piece:
    """A part of an answer."""

    kind: Literal["reasoning", "text"]
    text: str


def stream_answer(
    endpoint: api_client.Endpoint, key: str, body: Mapping[str, Any], taken: AnswerStats
) -> Iterator[Piece]:
    """Send the request and yield the answer as it arrives; `taken` is filled meanwhile.

    Raises api.ApiError where the answer breaks off or the server refuses.
    """
    try:
        for since, event in api_client.stream(endpoint, key, dict(body)):
            for piece in _parse_event(event or {}, taken):
                taken.first_s = since if taken.first_s is None else taken.first_s
                taken.last_s = since
                yield piece
    except api_client.ApiError as error:
        raise api_client.ApiError(_extract_message(str(error))) from None


def _parse_event(event: Mapping[str, Any], taken: AnswerStats) -> Iterator[Piece]:
    if isinstance(event.get("error"), dict):
        # An error in a stream that began with status 200.
        raise api_client.ApiError(str(event["error"].get("message")))
    usage = event.get("usage")
    if isinstance(usage, dict):
        taken.prompt_tokens = _read_count(usage, "prompt_tokens")
        taken.tokens = _read_count(usage, "completion_tokens")
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        taken.finish = choice.get("finish_reason") or taken.finish
        thought = next((delta[name] for name in _REASONING if delta.get(name)), None)
        if isinstance(thought, str):
            yield Piece("reasoning", thought)
        if isinstance(delta.get("content"), str) and delta["content"]:
            yield Piece("text", delta["content"])


def _read_count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) else None


def _extract_message(text: str) -> str:
    """Return the message in the JSON of an engine's error."""
    head, brace, rest = text.partition("{")
    try:
        document = json.loads(brace + rest)
    except ValueError:
        return text
    error = document.get("error")
    message = error.get("message") if isinstance(error, dict) else document.get("message")
    return f"{head}{message}" if message else text
