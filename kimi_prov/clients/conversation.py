"""A conversation with a model: its questions and answers, and how it is saved.

Decides: the chat: what it sends, and which lines its history keeps.
Held by: tests/component/commands/test_chat.py, tests/unit/show/live/test_chat_line.py.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kimi_prov.clients.server import Server

_IMAGE_BYTES = 32 << 20
# The first bytes of a file, and its type.
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)
_WEBP = (b"RIFF", b"WEBP")


@dataclass(frozen=True)
class Image:
    """An image of a question: its name, and its data URL for the model. Size in bytes."""

    name: str
    url: str
    size_bytes: int


def read_image(file: Path) -> Image:
    """Read an image. Raises UserError for an unreadable file and for another type."""
    fix = "name a PNG, JPEG, GIF or WebP of at most 32 MiB"
    try:
        with file.open("rb") as stream:
            data = stream.read(_IMAGE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}", fix=fix) from None
    kind = next((kind for start, kind in _KINDS if data.startswith(start)), None)
    if data[:4] == _WEBP[0] and data[8:12] == _WEBP[1]:
        kind = "image/webp"
    if kind is None or len(data) > _IMAGE_BYTES:
        raise UserError(f"{file}: this is no image that a model takes", fix=fix)
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return Image(file.name, url, len(data))


@dataclass
class Conversation:
    """The messages so far, without reasoning: a model does not see that of earlier answers."""

    server: Server
    system: str | None
    instant: bool = False
    images: list[Image] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, text: str) -> None:
        """Add a question, with the images that wait for one."""
        content: Any = text
        if self.images:
            parts = [{"type": "image_url", "image_url": {"url": i.url}} for i in self.images]
            content = [*parts, {"type": "text", "text": text}]
            self.images = []
        self.messages.append({"role": "user", "content": content})

    def answered(self, text: str) -> None:
        """Keep an answer, also an incomplete one; a question without an answer is removed."""
        if text:
            self.messages.append({"role": "assistant", "content": text})
        elif self.messages:
            self.messages.pop()

    def clear(self) -> None:
        """Remove all messages except the system prompt."""
        self.messages, self.images = [], []

    def request(self) -> dict[str, Any]:
        """Return the body of the request for the next answer, streamed, with its usage."""
        usage = self.server.usage
        thinks = self.server.thinks and not self.instant
        system = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {
            "model": self.server.model,
            "messages": [*system, *self.messages],
            "stream_options": {"include_usage": True},
        }
        sampling = {
            "temperature": usage.temperature(thinks=thinks) if usage else None,
            "top_p": usage.top_p if usage else None,
        }
        body |= {name: value for name, value in sampling.items() if value is not None}
        if self.instant:
            body["chat_template_kwargs"] = {"thinking": False}
        return body

    def document(self) -> dict[str, Any]:
        """Return the messages of a request, to be sent again."""
        return {"model": self.server.model, "messages": self.request()["messages"]}

    def markdown(self) -> str:
        """Return the conversation as Markdown, with a note in place of an image."""
        lines = [f"# {self.server.model}"]
        for row in self.request()["messages"]:
            lines += ["", f"## {row['role']}", "", _format_content(row["content"])]
        return "\n".join(lines) + "\n"


def _format_content(content: str | Iterable[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(part.get("text", "(an image)") for part in content)
