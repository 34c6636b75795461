"""State files of a supervisor for other readers: the phase of its group, and failed rounds.

Both are in the unit's runtime directory, which systemd keeps over restarts and removes after a
stop: a requested start begins without failed rounds. The engine's user writes there: their content
is untrusted, and every text is cleaned where it is shown.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from kimi_prov.contract import clean_text
from kimi_prov.on_host.system.files import PathLike, read_json, remove, write_json

WAITING, STARTING, SERVING = "waiting", "starting", "serving"
_PHASES = (WAITING, STARTING, SERVING)
_STATE, _ROUNDS = "state.json", "rounds.json"


class Record:
    """The state of one group with one plan; without a directory nothing is stored.

    A round is the time between `go` and the end of an engine. It has failed when all hosts were
    connected and the engine never answered.
    """

    def __init__(self, directory: str | None, digest: str) -> None:
        self._directory = directory
        self._digest = digest
        self._told = ("", "")

    def _path(self, name: str) -> str:
        return os.path.join(self._directory or "", name)

    @property
    def failed(self) -> int:
        """Return the number of rounds that failed one after the other."""
        found = read_json(self._path(_ROUNDS)) if self._directory else {}
        count = found.get("failed")
        same = found.get("digest") == self._digest
        return count if same and isinstance(count, int) else 0

    def fail(self, why: str) -> None:
        """Count one more."""
        if self._directory:
            document = {"digest": self._digest, "failed": self.failed + 1, "why": why}
            write_json(self._path(_ROUNDS), document, durable=False)

    def clear(self) -> None:
        """Reset the count: the engine has answered."""
        if self._directory:
            remove(self._path(_ROUNDS))

    def tell(self, phase: str, said: str) -> None:
        """Write the phase of the group, where it has changed."""
        if self._directory and (phase, said) != self._told:
            self._told = (phase, said)
            document = {"phase": phase, "said": said, "pid": os.getpid()}
            write_json(self._path(_STATE), document, durable=False)


@dataclass(frozen=True)
class Seen:
    """What a supervisor wrote: `phase` is empty where none runs.

    `failed` rounds were those of the plan with this `digest`.
    """

    phase: str
    said: str
    failed: int
    why: str
    digest: str = ""


def read(directory: PathLike) -> Seen:
    """Read what the supervisor wrote in its unit's runtime directory."""
    state = read_json(os.path.join(directory, _STATE), links=False)
    rounds = read_json(os.path.join(directory, _ROUNDS), links=False)
    phase, failed = state.get("phase"), rounds.get("failed")
    said = clean_text.clean_line(state.get("said", ""))
    if not os.path.exists(f"/proc/{state.get('pid')}"):
        # A supervisor writes at its end why it ended; one that was killed wrote nothing.
        said = said if phase == WAITING else ""
        phase = ""
    return Seen(
        phase if phase in _PHASES else "",
        said,
        failed if isinstance(failed, int) else 0,
        clean_text.clean_line(rounds.get("why", "")),
        clean_text.clean_line(rounds.get("digest", "")),
    )
