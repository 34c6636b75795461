"""The run folder: the log and results that are kept of each run, secrets masked.

Decides: which characters of foreign text are shown (in the folder of a run).
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.user_dirs import find_state_home, make_private, write_private

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.runner.arguments import Request
    from kimi_prov.runner.events import Stats
    from kimi_prov.runner.outcome import Outcome
    from kimi_prov.runner.redaction import Masker

RESULT = "result.json"
# The runs of this process, while its command has not ended.
_runs: list[Path] = []


def record_exit_code(code: int) -> None:
    """Write the exit code of the command that ends now into result.json of each of its runs.

    A file that cannot be read or written is left as it is, so that the command does not fail.
    """
    while _runs:
        path = _runs.pop() / RESULT
        with suppress(OSError, ValueError):
            document = json.loads(path.read_text(encoding="utf-8"))
            if document.get("exit_code") != code:
                document["exit_code"] = int(code)
                write_private(path, clean_text.as_json(document, indent=1) + "\n")


class RunFolder:
    """`runs/<time>-<command>-<inventory>/` with run.log, timings.json and result.json."""

    def __init__(self, path: Path, masker: Masker) -> None:
        self.path = path
        self._masker = masker
        _runs.append(path)
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._log: TextIO = os.fdopen(descriptor, "w", encoding="utf-8", buffering=1)

    @classmethod
    def create(cls, command: str, inventory: Path, masker: Masker) -> RunFolder:
        """Create the folder of a new run; only this user can read it.

        Raises UserError where the state folder cannot be written.
        """
        stamp = time.strftime("%Y%m%d-%H%M%S")
        words = (
            re.sub(r"[^A-Za-z0-9._-]+", "-", inventory.resolve().name).strip("-.") or "inventory"
        )
        base = find_state_home() / "runs"
        try:
            make_private(find_state_home())
            make_private(base)
            for attempt in range(1000):
                again = f".{attempt}" if attempt else ""
                path = base / f"{stamp}-{command}-{words[:60]}{again}"
                try:
                    path.mkdir(mode=0o700)
                except FileExistsError:
                    continue
                return cls(path, masker)
        except OSError as error:
            raise UserError(
                f"{base} cannot be written: {error.strerror}",
                fix="set XDG_STATE_HOME to a folder that you may write to",
            ) from error
        raise UserError(f"{base}: too many runs within one second", fix="run this again")

    @property
    def log(self) -> Path:
        """The log of all that Ansible printed."""
        return self.path / "run.log"

    def write(self, text: str) -> None:
        """Append to the log, masked and clean."""
        self._log.write(self._masker.mask(clean_text.clean_block(text)).rstrip("\n") + "\n")

    def save_results(self, request: Request, outcome: Outcome) -> None:
        """Write timings.json and result.json, and end the log."""
        seconds = round(outcome.wall_seconds, 3)
        phases = [
            {**asdict(phase), "seconds": round(phase.seconds, 3)}
            for phase in outcome.phases.values()
        ]
        self.write_document("timings.json", {"wall_seconds": seconds, "phases": phases})
        # The command's own is written over the first when it ends: it may know of more.
        code = int(outcome.exit_code())
        result = {
            "command": request.command,
            "inventory": str(request.inventory),
            "check": request.check,
            "exit_code": code,
            "playbook_exit_code": code,
            "interrupted": outcome.interrupted,
            "wall_seconds": seconds,
            "hosts": _count_by_host(outcome.stats) if outcome.stats else {},
            "failures": [
                {**vars(row), "exit_code": int(row.exit_code), "findings": list(row.findings)}
                for row in outcome.failures
            ],
            "findings": [{"host": row.host, **row.finding} for row in outcome.findings],
            "documents": outcome.documents,
        }
        self.write_document(RESULT, result)
        self.close()

    def write_document(self, name: str, content: object) -> None:
        """Write a JSON document beside the log, masked."""
        text = self._masker.mask(clean_text.as_json(content, indent=1, default=str))
        write_private(self.path / name, text + "\n")

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def _count_by_host(stats: Stats) -> dict[str, dict[str, int]]:
    counts = {
        "ok": stats.ok,
        "changed": stats.changed,
        "failed": stats.failures,
        "unreachable": stats.unreachable,
    }
    return {
        host: {name: by_host.get(host, 0) for name, by_host in counts.items()}
        for host in sorted({*stats.ok, *stats.failures, *stats.unreachable})
    }
