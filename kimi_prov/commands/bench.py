"""`kimi-prov bench`: measure the hosts, and compare each with its last result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.acceptance import bench
from kimi_prov.commands.common import bench_results, host_reports
from kimi_prov.show.text import bench as bench_text
from kimi_prov.user_dirs import state_home

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kimi_prov.commands.common.bench_load import BenchLoad
    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output


def run(
    path: Path, options: PlaybookOptions, load: BenchLoad, output: Output, form: str
) -> ExitCode:
    """Measure every host; keep the results, each compared with the one before.

    `form` is text, markdown or html, where the output is not JSON.
    """
    output.check()
    with load.file() as file:
        finished = host_reports.collect("bench", path, options, {"bench_load": str(file)})
    for host, result in finished.outcome.documents.items():
        folder = bench_results.folder(state_home(), path, host)
        before = bench_results.last(folder)
        if before is not None:
            result["last"] = bench.changes(before, result)
        bench_results.keep(folder, {**result, "last": None})
    return host_reports.publish("bench", finished, output, _renderer(form), _unreached)


def _renderer(form: str) -> Callable[[Mapping[str, Any]], str]:
    """Return what turns the document into `form`; only that one is imported."""
    if form == "html":
        from kimi_prov.show.report import bench_html  # noqa: PLC0415

        return bench_html.page
    if form == "markdown":
        from kimi_prov.show.report import bench_markdown  # noqa: PLC0415

        return bench_markdown.page
    return bench_text.text


def _unreached(why: str) -> dict[str, Any]:
    return {"ok": False, "detail": why, "stand_ins": []}
