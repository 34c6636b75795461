"""Writes the winner of a tune as lines of an inventory, with what was measured above them.

Decides: which lines a tune writes into an inventory.
Held by: tests/unit/planner/tuning/test_inventory_lines.py.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.tune import Variables

_MAX_COMMENT = 98
_HEAD = re.compile(r"^(?P<name>kimi_\w+)\s*:", re.MULTILINE)


def build_lines(variables: Variables, notes: Sequence[str]) -> str:
    """Return the lines for these variables, without their prefix; `notes` stand above them."""
    comments = [f"# {clean_text.clean_line(note)}"[:_MAX_COMMENT] for note in notes]
    rows = [f"kimi_{name}: {_format_value(value)}" for name, value in sorted(variables.items())]
    return "\n".join([*comments, *rows]) + "\n"


def describe_variables(variables: Variables) -> str:
    """Describe variables without their prefix in one line."""
    return ", ".join(f"{name} {_format_value(value)}" for name, value in sorted(variables.items()))


def _format_value(value: object) -> str:
    # JSON is YAML: a mapping of flags stays on one line.
    return value if isinstance(value, str) and value.isalnum() else json.dumps(value)


def add_lines(text: str, lines: str, path: str) -> str:
    """Return a file of variables with the lines at its end; nothing of it is rewritten.

    Raises UserError where the file sets one of the variables already.
    """
    new = set(_HEAD.findall(lines))
    own = sorted(new & set(_HEAD.findall(text)))
    if own:
        raise UserError(
            f"{path} sets {', '.join(own)} already, and a tune rewrites no line",
            fix=f"take these lines into {path} in their place:\n{lines}",
        )
    if text and not text.endswith("\n"):
        text += "\n"
    return f"{text}\n{lines}" if text else f"---\n{lines}"
