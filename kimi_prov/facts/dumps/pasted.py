"""Free a pasted text of what pages and mails put around it: quote marks, comment signs, indents.

Held by: tests/component/commands/check/test_hardware_cases.py.
"""

from __future__ import annotations

import re

# Marks that a whole block carries: "> " of a quotation, "# " and " * " of a comment.
_MARKS = (r"(?:>[ \t]?)+", r"[ \t]{0,8}# ?", r"[ \t]{0,8}\*(?: |$)")
_MIN_MARKED = 4
_SPACES = re.compile(r"[ \t]*")
_FENCE = re.compile(r"[ \t]*(?:```|~~~)")


def strip_frame(text: str) -> str:
    """Return a text without the marks and indents that its blocks have in common."""
    lines = [_strip_marks(run) for run in _split_runs(text.split("\n"))]
    return "\n".join(line for run in lines for line in _move_blocks(run))


def _split_runs(lines: list[str]) -> list[list[str]]:
    """Split lines where the sign at their start changes."""
    runs: list[list[str]] = []
    last: int | None = None
    for line in lines:
        mark = next((n for n, one in enumerate(_MARKS) if re.match(one, line)), None)
        if not runs or mark != last:
            runs.append([])
        runs[-1].append(line)
        last = mark
    return runs


def _strip_marks(run: list[str]) -> list[str]:
    """Take the marks from a block that has them on every line; a few are prompts or comments."""
    if len(run) < _MIN_MARKED:
        return run
    mark = next((one for one in _MARKS if re.match(one, run[0])), None)
    return run if mark is None else [re.sub(f"^{mark}", "", line) for line in run]


def _move_blocks(lines: list[str]) -> list[str]:
    """Move blocks to the left that begin behind an empty line or a fence and are indented."""
    start, cleaned = 0, list(lines)
    while start < len(lines):
        stop = start
        while stop < len(lines) and (lines[stop][:1] in (" ", "\t") or not lines[stop].strip()):
            stop += 1
        _move_block(cleaned, start, stop)
        stop = max(stop, start + 1)
        while stop < len(lines) and lines[stop].strip() and not _FENCE.match(lines[stop]):
            stop += 1
        start = stop + 1 if stop < len(lines) else stop
    return cleaned


def _move_block(lines: list[str], start: int, stop: int) -> None:
    indents = [_measure(line) for line in lines[start:stop] if line.strip()]
    # A head that stands further in than its rows is one of columns, as that of `free`.
    least = min(indents, default=0)
    if len(indents) > 1 and least:
        for position in range(start, stop):
            lines[position] = lines[position][least:]


def _measure(line: str) -> int:
    match = _SPACES.match(line)
    return match.end() if match else 0
