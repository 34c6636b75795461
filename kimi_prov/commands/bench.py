"""`kimi-prov bench`: measure the hosts, and compare each with its last result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kimi_prov.acceptance.bench import compare_results
from kimi_prov.commands.common import bench_load, bench_results, host_reports
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import add_inventory_options, add_report_options
from kimi_prov.show.text import bench as bench_text
from kimi_prov.user_dirs import find_state_home

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.show.output import Output


@click.command(cls=Command)
@add_inventory_options(
    bench_load.add_load_options,
    report=add_report_options("text", "json", "markdown", "html", by_suffix=True),
)
def bench(path: Path, options: PlaybookOptions, output: Output, **load: Any) -> ExitCode:  # noqa: ANN401
    """Measure memory, the kernel and the served model, and show whether the result is normal.

    The engine's own client sends random words, all requests at once; options change the load. A
    load that the client, the model or its context cannot handle is refused before it starts.
    """
    chosen = bench_load.parse_load(load)
    output.check()
    with chosen.file() as file:
        finished = host_reports.collect("bench", path, options, {"bench_load": str(file)})
    for host, result in finished.outcome.documents.items():
        folder = bench_results.find_folder(find_state_home(), path, host)
        before = bench_results.read_last(folder)
        if before is not None:
            result["last"] = compare_results(before, result)
        bench_results.save(folder, {**result, "last": None})
    return host_reports.publish(
        "bench", finished, output, _find_writer(output.format), _make_unreached
    )


def _find_writer(form: str) -> Callable[[Mapping[str, Any]], str]:
    """Return the writer of the document in this form; import only that one."""
    if form == "html":
        from kimi_prov.show.report import bench_html  # noqa: PLC0415

        return bench_html.render_page
    if form == "markdown":
        from kimi_prov.show.report import bench_markdown  # noqa: PLC0415

        return bench_markdown.format_page
    return bench_text.format_text


def _make_unreached(reason: str) -> dict[str, Any]:
    return {**host_reports.make_unreached(reason), "stand_ins": []}
