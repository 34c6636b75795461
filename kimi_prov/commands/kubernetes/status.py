"""`kimi-prov status` of a folder that `render kubernetes` made."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kimi_prov.errors import ExitCode
from kimi_prov.operate.kubernetes import diagnosis, observe, status
from kimi_prov.operate.kubernetes.folder import Folder
from kimi_prov.show.text import kubernetes

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.operate.kubernetes.kubectl import Target
    from kimi_prov.show.output import Output


def run(path: Path, target: Target, output: Output) -> ExitCode:
    """Report what runs; exit 1 unless it serves or was stopped on purpose."""
    output.check()
    folder = Folder.read(path, target)
    found = observe.take_snapshot(folder)
    judged = diagnosis.judge_status(found)
    # Report a job that runs or failed; without it, weights alone are no served model.
    if found.workload is None and judged.state == "stopped":
        entry = status.make_absent_entry(folder)
    else:
        entry = status.make_entry(folder, found, judged, time.time())
    document = {"schema": "kimi-prov/status/v1", "ok": entry["ok"], "hosts": {folder.name: entry}}
    output.write(document, lambda: kubernetes.format_status(document))
    return ExitCode.OK if entry["ok"] else ExitCode.FAILED
