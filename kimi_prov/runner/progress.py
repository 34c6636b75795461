"""How far long work on a machine is: reported by action plugins, read by the command line.

The two sides meet in a file of JSON lines that only the operator may read.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kimi_prov.contract import clean_text
from kimi_prov.contract.durations import duration
from kimi_prov.contract.sizes import human
from kimi_prov.runner.arguments import PROGRESS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INTERVAL_S = 5.0
_last: dict[tuple[str, str], tuple[float, str]] = {}


class Display(Protocol):
    """Ansible's own output, as far as it is used here."""

    def display(self, msg: str) -> None:
        """Show one line."""


@dataclass(frozen=True)
class ProgressUpdate:
    """How far one host is in one piece of work. Bytes, bytes per second, seconds."""

    host: str
    phase: str
    line: str = ""
    done_bytes: int | None = None
    total_bytes: int | None = None
    rate_bytes_per_s: float | None = None
    eta_s: float | None = None


def report(display: Display, host: str, update: Mapping[str, Any]) -> None:
    """Report how far `host` is.

    Under `kimi-prov` a line goes to the file that KIMI_PROV_PROGRESS names; under a plain
    ansible-playbook a sentence goes to the screen, at most every five seconds for each phase.
    """
    path = os.environ.get(PROGRESS)
    if path:
        line = json.dumps({"host": host, **update}) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
        return
    key = (host, str(update.get("phase")))
    text = sentence(_parse({"host": host, **update}))
    then, before = _last.get(key, (float("-inf"), ""))
    if time.monotonic() - then >= INTERVAL_S and text != before:
        _last[key] = (time.monotonic(), text)
        display.display(clean_text.row(text))


class ProgressReader:
    """Reads what was appended since the last call; lines that are not whole yet stay for later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[ProgressUpdate]:
        """Return the new updates in order; a line that makes no sense is left out."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        updates = []
        for line in whole.splitlines():
            try:
                updates.append(_parse(json.loads(line)))
            except (ValueError, TypeError, AttributeError, KeyError):
                continue
        return updates


def _parse(document: Mapping[str, Any]) -> ProgressUpdate:
    return ProgressUpdate(
        host=str(document["host"]),
        phase=str(document.get("phase") or "work"),
        line=str(document.get("line") or ""),
        done_bytes=_whole(document.get("done_bytes")),
        total_bytes=_whole(document.get("total_bytes")),
        rate_bytes_per_s=_real(document.get("rate_bytes_per_s")),
        eta_s=_real(document.get("eta_s")),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _real(value: float | None) -> float | None:
    return None if value is None else float(value)


def amounts(update: ProgressUpdate) -> str:
    """Write bytes, share, rate and time left, as far as they are known."""
    parts = []
    if update.total_bytes:
        done = update.done_bytes or 0
        share = min(100, done * 100 // update.total_bytes)
        parts.append(f"{human(done)} of {human(update.total_bytes)} ({share} %)")
    if update.rate_bytes_per_s:
        parts.append(f"{human(update.rate_bytes_per_s)}/s")
    if update.eta_s is not None:
        parts.append(f"{duration(update.eta_s)} left")
    return ", ".join(parts)


def sentence(update: ProgressUpdate) -> str:
    """Write the whole update as one plain line."""
    text = " - ".join(part for part in (amounts(update), update.line) if part)
    return f"{update.host}: {update.phase}: {text}"
