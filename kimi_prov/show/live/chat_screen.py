"""The screen of a chat: text as it arrives, reasoning dimmed, nothing drawn twice."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text

if TYPE_CHECKING:
    from kimi_prov.clients.answers import AnswerStats, Piece

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
# Variation selectors of emoji, which have no width.
_JOINERS = re.compile("[\u200d\ufe0e\ufe0f]")


class ChatScreen:
    """Writes answers to standard output; without a terminal only the answers."""

    def __init__(self, *, terminal: bool, reasoning: bool) -> None:
        self._terminal, self._reasoning = terminal, reasoning
        term = os.environ.get("TERM", "dumb")
        self._dims = terminal and not os.environ.get("NO_COLOR") and term not in ("dumb", "unknown")
        self._kind = ""
        self._ends = True

    def piece(self, piece: Piece) -> None:
        """Write a part of an answer at once."""
        if piece.kind == "reasoning" and not self._reasoning:
            return
        text = clean_text.clean_block(_JOINERS.sub("", piece.text))
        if piece.kind != self._kind:
            text = text.lstrip("\n")
            if not text:
                return
            self._turn(piece.kind)
        # Each piece ends its own dimming, so that an interruption leaves no dim terminal.
        dimmed = self._dims and piece.kind == "reasoning"
        self._write(f"{_DIM}{text}{_PLAIN}" if dimmed else text, ends=text.endswith("\n"))

    def _turn(self, kind: str) -> None:
        if self._kind:
            self._line()
            self._write("\n")
        # Without colours, words separate reasoning and answer.
        if self._reasoning and not self._dims:
            if kind == "reasoning":
                self._write("[reasoning] ")
            elif self._kind:
                self._write("[answer] ")
        self._kind = kind

    def done(self, taken: AnswerStats | None) -> None:
        """End an answer, with its time and tokens."""
        self._line()
        self._kind = ""
        if taken is not None:
            told = format_summary(taken)
            if self._terminal:
                self._write(f"{_DIM}{told}{_PLAIN}\n" if self._dims else f"{told}\n")
            else:
                sys.stderr.write(f"{told}\n")
                sys.stderr.flush()

    def note(self, text: str) -> None:
        """Write a note of the program between answers."""
        self._line()
        clean = clean_text.clean_block(text)
        self._write(f"{_DIM}{clean}{_PLAIN}\n" if self._dims else f"{clean}\n")

    def _line(self) -> None:
        if not self._ends:
            self._write("\n")

    def _write(self, text: str, *, ends: bool | None = None) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._ends = text.endswith("\n") if ends is None else ends


def format_summary(taken: AnswerStats) -> str:
    """Write an answer's time and tokens on one line."""
    parts = []
    if taken.tokens is not None:
        parts.append(f"{taken.tokens} tokens" if taken.tokens != 1 else "1 token")
    if taken.prompt_tokens is not None:
        parts.append(f"{taken.prompt_tokens} read")
    if taken.first_s is not None:
        parts.append(f"first after {taken.first_s:.2f} s")
    if taken.last_s is not None:
        parts.append(f"last after {taken.last_s:.2f} s")
    if taken.tokens_per_s is not None:
        parts.append(f"{taken.tokens_per_s:.1f} tok/s")
    if taken.finish == "length":
        parts.append("cut off at the limit of tokens")
    return f"[{', '.join(parts) or 'no answer'}]"
