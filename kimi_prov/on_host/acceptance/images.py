"""Generated images, and questions that cannot be answered without seeing them."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any, Callable

from kimi_prov.on_host.acceptance.answers import Answer, Asker, describe_answer
from kimi_prov.on_host.acceptance.knowledge import is_choosing
from kimi_prov.on_host.acceptance.verdicts import Verdict, Wrong, judge_answers

Colour = tuple[int, int, int]
# Ten tokens wide and high: a token of Kimi K2.5 has 28 pixels.
SIDE = 280
_WHITE, _BLACK = (255, 255, 255), (0, 0, 0)
COLOURS: dict[str, Colour] = {"red": (220, 20, 20), "green": (20, 160, 40), "blue": (20, 40, 220)}
_SQUARE = "Which colour has the square in the picture? Answer with one word: red, green or blue."
_BARS = "How many black bars are in the picture? Answer with the number alone."
_TOKENS = 2048


def encode_png(pixel: Callable[[int, int], Colour], side: int = SIDE) -> bytes:
    """Return a square image as PNG; `pixel` gives the colour at x and y."""
    rows = b"".join(b"\0" + b"".join(bytes(pixel(x, y)) for x in range(side)) for y in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def draw_square(colour: Colour) -> bytes:
    """Return an image of one square on white."""
    low, high = SIDE // 4, 3 * SIDE // 4
    return encode_png(lambda x, y: colour if low <= x < high and low <= y < high else _WHITE)


def draw_bars(count: int) -> bytes:
    """Return an image of black upright bars on white, each as wide as the gaps."""
    width = SIDE // (2 * count + 1)
    return encode_png(
        lambda x, _: _BLACK if x // width % 2 and x // width < 2 * count + 1 else _WHITE
    )


def build_questions() -> list[tuple[str, bytes, str]]:
    """Return question, image and answer; the same question with several images."""
    squares = [(_SQUARE, draw_square(colour), name) for name, colour in COLOURS.items()]
    return [*squares, *((_BARS, draw_bars(count), str(count)) for count in (2, 5))]


def list_rivals(expected: str) -> tuple[str, ...]:
    """Return the possible answers that are colours; none for a number."""
    return tuple(COLOURS) if expected in COLOURS else ()


def build_content(question: str, picture: bytes) -> list[dict[str, Any]]:
    """Return the message's content: the image as a data URL, then the question."""
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    return [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": question},
    ]


def check_images(asker: Asker) -> Verdict:
    """Ask about images; a model that does not see them gives the same answer for each."""
    asked = build_questions()
    found = asker.many(
        [
            asker.body([{"role": "user", "content": build_content(question, picture)}], _TOKENS)
            for question, picture, _ in asked
        ]
    )
    wrong = [
        Wrong(f"{question} ({expected})", expected, describe_answer(answer))
        for (question, _, expected), answer in zip(asked, found)
        if not (
            isinstance(answer, Answer) and is_choosing(answer.text, expected, list_rivals(expected))
        )
    ]
    return judge_answers(len(asked), wrong, "images recognised")
