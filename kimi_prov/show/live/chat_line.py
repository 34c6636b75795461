"""Read lines of a chat: editing, and a history that holds no secret.

Decides: the chat: what it sends, and which lines its history keeps (the history).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov import documents
from kimi_prov.errors import UserError
from kimi_prov.runner.redaction import Masker
from kimi_prov.user_dirs import make_private, write_private

if TYPE_CHECKING:
    from pathlib import Path

_MAX_LINES = 1000
_HISTORY_BYTES = 4 << 20
_PROMPT, _MORE = "> ", ". "
# Lines that end a chat are not kept in the history.
LEAVES = ("/quit", "/exit")
# Common beginnings of keys; and long words that only a program generates.
_ISSUED = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|ghs|glpat|xox[a-z]|hf|npm|pypi|dop_v1|github_pat|AKIA|AIza|eyJ)[-_A-Za-z0-9]{8,}"
)
_TOLD = re.compile(
    r"(?i)\b(?:pass(?:word|phrase|wd)?|secret|token|api[ _-]?key|credentials?)\b\s*(?:is\b|[:=])"
)
_MADE = re.compile(r"(?=[^\s]*[0-9])(?=[^\s]*[A-Za-z])[A-Za-z0-9_+/=.\-]{24,}")


def is_kept_in_history(line: str, masker: Masker) -> bool:
    """Whether a line may go into the history: nothing in it looks like a secret."""
    if masker.mask(line) != line or _ISSUED.search(line) or _TOLD.search(line):
        return False
    # Paths and URLs are long words too; a key has no slash or dot between ordinary words.
    return not any(
        _MADE.fullmatch(word) and not re.search(r"[/.].*[/.]", word) for word in line.split()
    )


class ChatLine:
    """Reads lines with readline, where Python has it; its history is in our own file."""

    def __init__(self, history: Path, key: str) -> None:
        self._file, self._masker = history, Masker([key])
        self._lines = _read(history)
        try:
            import readline  # noqa: PLC0415  (only a chat on a terminal takes it)
        except ImportError:
            self._readline = None
            return
        self._readline = readline
        # Several pasted lines are one question. Python turns that off by default.
        readline.parse_and_bind("set enable-bracketed-paste on")
        readline.set_auto_history(False)
        readline.clear_history()
        for line in self._lines:
            readline.add_history(line)

    def read(self) -> str | None:
        """Return a line, joined with the next after a backslash; None at the end of input.

        Ctrl-C drops a line with text, and raises KeyboardInterrupt on an empty one.
        """
        typed: list[str] = []
        while True:
            try:
                line = input(_MORE if typed else _PROMPT)
            except EOFError:
                print()  # noqa: T201  (the terminal's line is open)
                return None
            except KeyboardInterrupt:
                print()  # noqa: T201
                if not typed and not (self._readline and self._readline.get_line_buffer()):
                    raise
                typed = []
                continue
            if line.endswith("\\"):
                typed.append(line[:-1])
                continue
            whole = "\n".join([*typed, line])
            self._keep(whole)
            return whole

    def _keep(self, line: str) -> None:
        flat = " ".join(line.split("\n")).strip()
        if (
            not flat
            or flat in LEAVES
            or not is_kept_in_history(flat, self._masker)
            or self._lines[-1:] == [flat]
        ):
            return
        self._lines.append(flat)
        if self._readline:
            self._readline.add_history(flat)
        make_private(self._file.parent)
        write_private(self._file, "".join(f"{row}\n" for row in self._lines[-_MAX_LINES:]))


def _read(file: Path) -> list[str]:
    """Return the earlier lines; none where they cannot be read."""
    if not file.is_file():
        return []
    try:
        text = documents.read_bytes(file, what="a history", limit=_HISTORY_BYTES, fix="").decode(
            errors="replace"
        )
    except UserError:
        return []
    return text.splitlines()[-_MAX_LINES:]
