"""`kimi-prov drift`: what is not as it was applied, since when and through what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.acceptance import drift
from kimi_prov.commands.common import host_reports
from kimi_prov.show.text import drift as drift_text

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output


def run(path: Path, options: PlaybookOptions, output: Output, *, weights: bool) -> ExitCode:
    """Compare every host with what was applied; drift, or not all looked at, makes it exit 1."""
    output.check()
    given = {"drift_weights": weights, "drift_inventory": str(path)}
    finished = host_reports.collect("drift", path, options, given)
    return host_reports.publish("drift", finished, output, drift_text.text, drift.unreached)
