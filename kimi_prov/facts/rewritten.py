"""A spec sheet on its way into the schema's form, with the original keys for messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kimi_prov.facts.schema_check import MisfitError

if TYPE_CHECKING:
    from kimi_prov.facts.schema_check import Key


@dataclass
class Rewritten:
    """A sheet in the schema's form, its ambiguous values, and the original keys.

    `written` maps keys of the form to those of the text, where they differ; `unused` are keys that
    no plan needs.
    """

    sheet: Any
    faults: list[MisfitError] = field(default_factory=list)
    written: dict[Key, Key] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)

    def place(self, path: Key) -> Key:
        """Return the keys in the text of the value at `path` in the form."""
        for size in range(len(path), 0, -1):
            if path[:size] in self.written:
                return (*self.written[path[:size]], *path[size:])
        return path

    def add_fault(self, path: Key, problem: str, fix: str | None = None) -> None:
        """Add a fault of the value at `path` in the form."""
        self.faults.append(MisfitError(self.place(path), problem, fix))
