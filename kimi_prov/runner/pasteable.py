"""Put the inventory's path into the commands that a machine's messages name."""

from __future__ import annotations

import re
from typing import Any

from kimi_prov.contract import clean_text

# Commands whose first argument is an inventory. A machine does not know its path.
_COMMANDS = (
    "apply|backup|bench|chat|clean|connect|destroy|diagnose|drift|history|key|logs|plan|restart|"
    "restore|rollback|start|status|stop|update|usage|verify"
)
_PLACEHOLDER = re.compile(r"\bINVENTORY\b")
# A command that ends there, or goes on with an option: its inventory was left out.
_BARE = re.compile(rf"(\bkimi-prov (?:{_COMMANDS}))(?= --|  |[`.,;:)]|$)", re.MULTILINE)


def fill_document(value: Any, inventory: object) -> Any:  # noqa: ANN401  (whatever JSON can hold)
    """Return a document with all its texts filled; for what people read, not for JSON."""
    if isinstance(value, str):
        return fill_inventory(value, inventory)
    if isinstance(value, dict):
        return {key: fill_document(part, inventory) for key, part in value.items()}
    return [fill_document(part, inventory) for part in value] if isinstance(value, list) else value


def fill_inventory(text: str, inventory: object) -> str:
    """Return the text with the inventory's path in each command that lacks it; None: unchanged."""
    if inventory is None:
        return text
    path = clean_text.quote_word(inventory)
    named = _PLACEHOLDER.sub(lambda _: path, text)
    return _BARE.sub(lambda command: f"{command[1]} {path}", named)
