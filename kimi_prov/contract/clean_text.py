r"""Text from elsewhere, made safe to show: a machine's, a vendor's, an engine's, ssh's.

It may contain anything, but must not control the terminal, the log or the page that shows it:
control characters and escape sequences, marks that change the direction of writing, invisible
characters, and halves of surrogate pairs are escaped as Python writes them, `\x1b` or `\u202e`. So
the text stays readable, and a key with such a character in its name shows why it is unknown.
Nothing else is changed.

Decides: which characters of foreign text are shown.
Held by: tests/unit/contract/test_clean_text.py, tests/component/commands/test_clean_output.py.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, Callable

# Unicode's control, surrogate, line and paragraph separator and default ignorable characters, and
# marks of annotations; the functions below handle line breaks and tabs.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_HALF = re.compile("[\ud800-\udfff]")
# Colours, which engines write into their logs: nothing is lost without them.
_COLOUR = re.compile("(?:\x1b\\[|\x9b)[0-9;:]*m")


def clean_block(value: object) -> str:
    """Return clean text that may have several lines; tabs stay."""
    text = _COLOUR.sub("", str(value)).replace("\r\n", "\n")
    return _HIDDEN.sub(_escape_hidden, text)


def clean_row(value: object) -> str:
    """Return clean text on one line, its spaces as they are."""
    return " ".join(clean_block(value).splitlines())


def clean_line(value: object) -> str:
    """Return clean text on one line, each run of white space made one space."""
    return clean_block(" ".join(_COLOUR.sub("", str(value)).split()))


def quote_word(value: object) -> str:
    """Return a host, path or address as one word of a command that a user may paste."""
    return shlex.quote(str(value))


def clean_entry(value: object) -> str:
    """Return clean text with its further lines indented, so that none looks like ours."""
    return "\n         ".join(clean_block(value).splitlines())


def clean_data(value: Any) -> Any:  # noqa: ANN401  (whatever JSON can hold)
    """Return lists and mappings with all texts in them clean, including the keys."""
    if isinstance(value, str):
        return clean_block(value)
    if isinstance(value, Mapping):
        return {clean_data(key): clean_data(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_data(inner) for inner in value]
    return value


def as_json(
    document: object, indent: int | None = 2, default: Callable[[Any], Any] | None = None
) -> str:
    """Return a document as JSON that is safe to print and has the same values.

    `indent` None: all on one line.

    Characters that must not be printed are escaped, as JSON allows. Not every reader accepts half
    of a surrogate pair: it becomes U+FFFD.
    """
    text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False, default=default)
    return _HIDDEN.sub(_escape_surrogates, _HALF.sub("\ufffd", text))


def _escape_hidden(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")


def _escape_surrogates(match: re.Match[str]) -> str:
    return json.dumps(match.group())[1:-1]
