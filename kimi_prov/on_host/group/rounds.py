"""How often in a row the group was whole and its engine did not come up.

Kept in the unit's runtime directory, which systemd keeps over restarts and removes after a stop: a
start that was asked for begins at none.
"""

from __future__ import annotations

import os
from typing import Optional

from kimi_prov.on_host.system.files import read_json, remove, write_json

_NAME = "rounds.json"


class Rounds:
    """Count of failed rounds with one plan; without a directory nothing is counted.

    A round is what lies between `go` and the end of an engine. It has failed when all hosts were
    there and the engine never answered.
    """

    def __init__(self, directory: Optional[str], digest: str) -> None:
        self._path = os.path.join(directory, _NAME) if directory else None
        self._digest = digest

    @property
    def failed(self) -> int:
        """Rounds that failed one after the other."""
        found = read_json(self._path) if self._path else {}
        count = found.get("failed")
        same = found.get("digest") == self._digest
        return count if same and isinstance(count, int) else 0

    def fail(self) -> int:
        """Count one more; returns how many there are now."""
        count = self.failed + 1
        if self._path:
            write_json(self._path, {"digest": self._digest, "failed": count}, durable=False)
        return count

    def clear(self) -> None:
        """Begin at none: the engine has answered."""
        if self._path:
            remove(self._path)
