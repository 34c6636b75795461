"""Read and check the prompts of a file for a bench, in ShareGPT's or VisionArena's format.

    ShareGPT     [{"conversations": [{"from": "human", "value": TEXT}, {"value": TEXT}]}, ...]
    VisionArena  [{"conversation": [[{"role": "user", "content": TEXT}]], "images": [IMAGE]}, ...]

JSON, or JSON Lines. Of a conversation the first question counts, and of ShareGPT's the length of
its first answer, as vLLM's and sglang's own clients read them. An IMAGE is a data URL, base64, or
{"bytes": base64}: it has to be in the file, for the machine fetches nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov import documents
from kimi_prov.documents import Document, format_path
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MAX_BYTES = 64 << 20
_MAX_IMAGE_BYTES = 8 << 20
_MAX_PROMPT_LENGTH = 1 << 20
# In a larger file finding a line takes too long: the error names the key.
_MAX_BYTES_FOR_LINES = 1 << 20
_TURNS = 2
# Limit of a list: 64 MiB of short conversations have fewer.
_MAX_VALUES = 5_000_000
_FIX = (
    'give a list of {"conversations": [{"from": "human", "value": TEXT}, {"from": "gpt", "value": '
    'TEXT}]}, or of {"conversation": [[{"role": "user", "content": TEXT}]], "images": [DATA_URL]}'
)
_KINDS = (
    (b"\x89PNG\r\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF8", "gif"),
    (b"RIFF", "webp"),
)


@dataclass(frozen=True)
class Prompts:
    """The prompts of a file: `rows` of prompt, answer and image, as the machine reads them.

    `left_out`: the number of conversations without an answer: a client requests the length of the
    answer, so these are not used.
    """

    form: str
    rows: Sequence[dict[str, str | None]]
    left_out: int

    @property
    def pictures(self) -> int:
        """The number of prompts with an image."""
        return sum(1 for row in self.rows if row["image"])


class _FaultError(Exception):
    """What is wrong, and the key below the entry."""

    def __init__(self, path: tuple[str | int, ...], problem: str) -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem


def read_prompts(path: Path) -> Prompts:
    """Read the file. Raises UserError that names its line and key."""
    document = documents.read_document(path, what="prompts of a bench", limit=MAX_BYTES, fix=_FIX)
    rows: list[dict[str, str | None]] = []
    forms: dict[str, str] = {}
    left_out = 0
    for where, key, entry in _list_entries(document):
        try:
            form, row = _read_entry(entry)
        except _FaultError as fault:
            location = where or _find_line(document, (*key, *fault.path))
            name = format_path((*key, *fault.path)) or "the entry"
            raise UserError(f"{location}: {name[:200]}: {fault.problem}", fix=_FIX) from None
        forms.setdefault(form, where or format_path(key))
        if row is None:
            left_out += 1
        else:
            rows.append(row)
    if len(forms) > 1:
        forms_seen = ", ".join(f"{form} at {location}" for form, location in forms.items())
        raise UserError(
            f"{document.name}: two forms in one file: {forms_seen}", fix="bench them one by one"
        )
    if not rows:
        raise UserError(f"{document.name}: there is no prompt in it", fix=_FIX)
    return Prompts(next(iter(forms)), rows, left_out)


def _list_entries(document: Document) -> Iterator[tuple[str, tuple[str | int, ...], Any]]:
    """Yield each entry with its line (JSON Lines) or its key (a list)."""
    text = document.text.lstrip()
    if text.startswith("["):
        for index, entry in enumerate(document.json(_FIX, most=_MAX_VALUES)):
            yield "", (index,), entry
        return
    for index, line in enumerate(document.text.split("\n"), 1):
        if line.strip():
            location = f"{document.name}:{index}"
            try:
                json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{location}: not JSON: {error.msg}", fix=_FIX) from None
            except (RecursionError, ValueError):
                pass  # the reader of all documents reports it next
            yield location, (), Document(location, line).json(_FIX)


def _find_line(document: Document, path: tuple[str | int, ...]) -> str:
    line = (
        documents.find_line(document.text, path)
        if len(document.text) <= _MAX_BYTES_FOR_LINES
        else None
    )
    return f"{document.name}:{line}" if line else document.name


def _read_entry(entry: Any) -> tuple[str, dict[str, str | None] | None]:  # noqa: ANN401
    """Read one entry: its form, and its row; None for a conversation that was not answered."""
    if not isinstance(entry, dict):
        raise _FaultError((), f"wanted an object, found {_name_kind(entry)}")
    if "conversations" in entry:
        return "sharegpt", _read_sharegpt(entry)
    for key in ("conversation", "turns"):
        if key in entry:
            return "visionarena", _read_vision_arena(entry, key)
    raise _FaultError((), "it has neither conversations (ShareGPT) nor conversation (VisionArena)")


def _read_sharegpt(entry: dict[str, Any]) -> dict[str, str | None] | None:
    turns = _read_list(entry["conversations"], ("conversations",))
    if len(turns) < _TURNS:
        return None
    texts = []
    for index, turn in enumerate(turns[:_TURNS]):
        where = ("conversations", index)
        if not isinstance(turn, dict):
            raise _FaultError(where, f"wanted an object, found {_name_kind(turn)}")
        texts.append(_read_text(turn.get("value"), (*where, "value")))
    image = entry.get("image")
    picture = _read_image(image, ("image",)) if image is not None else None
    return {
        "prompt": _check_prompt(texts[0], ("conversations", 0, "value")),
        "answer": texts[1],
    } | {"image": picture}


def _read_vision_arena(entry: dict[str, Any], key: str) -> dict[str, str | None]:
    where: tuple[str | int, ...] = (key,)
    first: Any = entry[key]
    for _ in range(2):
        turns = _read_list(first, where)
        if not turns:
            raise _FaultError(where, "nothing is asked")
        first, where = turns[0], (*where, 0)
        if isinstance(first, dict):
            break
    if not isinstance(first, dict):
        raise _FaultError(where, f"wanted an object, found {_name_kind(first)}")
    text = _check_prompt(_read_text(first.get("content"), (*where, "content")), (*where, "content"))
    images = _read_list(entry.get("images"), ("images",))
    if not images:
        raise _FaultError(("images",), "wanted an image")
    return {"prompt": text, "answer": None, "image": _read_image(images[0], ("images", 0))}


def _read_image(value: Any, where: tuple[str | int, ...]) -> str:  # noqa: ANN401
    """Return an image as a data URL whose type follows from its first bytes."""
    if isinstance(value, dict):
        value, where = value.get("bytes"), (*where, "bytes")
    text = _read_text(value, where)
    if text.startswith("data:"):
        head, _, text = text.partition(",")
        if not head.endswith(";base64"):
            raise _FaultError(where, "wanted a data URL in base64")
    if len(text) > _MAX_IMAGE_BYTES * 4 // 3 + 4:
        raise _FaultError(where, f"an image is larger than {_MAX_IMAGE_BYTES >> 20} MiB")
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _FaultError(
            where, "wanted the image itself, in base64: the machine fetches and opens none"
        ) from None
    for magic, kind in _KINDS:
        if content.startswith(magic):
            return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    raise _FaultError(where, "this is no PNG, JPEG, GIF or WebP")


def _read_list(value: Any, where: tuple[str | int, ...]) -> list[Any]:  # noqa: ANN401
    if isinstance(value, list):
        return value
    raise _FaultError(where, f"wanted a list, found {_name_kind(value)}")


def _read_text(value: Any, where: tuple[str | int, ...]) -> str:  # noqa: ANN401
    if isinstance(value, str):
        return value
    raise _FaultError(where, f"wanted text, found {_name_kind(value)}")


def _check_prompt(text: str, where: tuple[str | int, ...]) -> str:
    if not text.strip():
        raise _FaultError(where, "nothing is asked")
    if len(text) > _MAX_PROMPT_LENGTH:
        raise _FaultError(where, f"a prompt is longer than {_MAX_PROMPT_LENGTH:,} characters")
    return text


def _name_kind(value: Any) -> str:  # noqa: ANN401
    if value is None:
        return "nothing"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return names.get(type(value), "a number")
