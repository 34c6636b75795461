"""`kimi-prov status`: report what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.commands import host_reports
from kimi_prov.console import status_text

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.console.output import Output
    from kimi_prov.errors import ExitCode


def run(path: Path, limit: str | None, output: Output) -> ExitCode:
    """Report what runs on every host; one that does not serve makes it exit 1."""
    output.check()
    finished = host_reports.collect("status", path, limit)
    return host_reports.publish("status", finished, output, status_text.text, _unreached)


def _unreached(why: str) -> dict[str, Any]:
    return {"ok": False, "provisioned": False, "detail": why, "stand_ins": []}
