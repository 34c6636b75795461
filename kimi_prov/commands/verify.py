"""`kimi-prov verify`: check the served model and its port."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.acceptance import suite as suites
from kimi_prov.commands.common import host_reports, rendered
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import (
    INVENTORY_OR_FOLDER,
    LIMIT,
    PATH,
    SUITES,
    add_cluster_options,
    add_output_options,
    add_playbook_options,
)
from kimi_prov.commands.kubernetes import verify as kubernetes
from kimi_prov.errors import UserError
from kimi_prov.on_host.acceptance import catalogue
from kimi_prov.on_host.acceptance.catalogue import Selection
from kimi_prov.show.output import check_writable, write_whole
from kimi_prov.show.text import junit as junit_text
from kimi_prov.show.text import verify as verify_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.contract.documents.verify import Verify
    from kimi_prov.errors import ExitCode
    from kimi_prov.operate.kubernetes.kubectl import Target
    from kimi_prov.show.output import Output


def _select(suite: str, only: Sequence[str], skip: Sequence[str]) -> Selection:
    """Return the checks to run. Raises UserError for a name that matches no check."""
    own = catalogue.NAMES if suite == catalogue.FULL else ()
    known = (*catalogue.PORT, *suites.OF_MACHINE, *own)
    for option, patterns in (("--only", only), ("--skip", skip)):
        for pattern in patterns:
            length = catalogue.may_be_needle(pattern)
            taken = any(Selection(only=(pattern,)).includes(check) for check in known)
            if not taken and not (length and suite == catalogue.FULL):
                elsewhere = length or pattern in catalogue.NAMES
                raise UserError(
                    f"{option} {pattern}: no check of the suite {suite} has this name; there are "
                    f"{', '.join(known)}",
                    fix="add --suite full" if elsewhere else "correct the name",
                )
    return Selection(suite, tuple(only), tuple(skip))


@click.command(cls=Command)
@INVENTORY_OR_FOLDER
@LIMIT
@add_output_options
@add_cluster_options
@click.option(
    "--api-key-file",
    type=PATH,
    metavar="FILE",
    help="API key for a cluster's service.  [default: KIMI_API_KEY, else the cluster's secret]",
)
@click.option(
    "--suite",
    type=SUITES,
    default="basic",
    show_default=True,
    help="full: long prompts, images, tools, code and more; minutes to hours.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Only checks of this name; * is any.")
@click.option("--skip", multiple=True, metavar="NAME", help="All but checks of this name.")
@click.option("--junit", type=PATH, metavar="FILE", help="Write the result there as JUnit XML too.")
@add_playbook_options
def verify(  # noqa: PLR0913  (one for each option)
    path: Path,
    options: PlaybookOptions,
    output: Output,
    target: Target,
    *,
    api_key_file: Path | None,
    suite: str,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    junit: Path | None,
) -> ExitCode:
    """Check that the served model answers correctly, and who can reach its port.

    DIR is a folder that `render kubernetes` made: the checks go through a forwarded port of its
    service.

    A check that was not run is reported as skipped, with the reason: neither failed nor passed.
    """
    selection = _select(suite, only, skip)
    if junit is not None:
        check_writable("--junit", junit)
        if output.file is not None and junit.resolve() == output.file.resolve():
            raise UserError(
                f"--junit {junit}: --output names the same file", fix="name another file"
            )

    def write_junit(document: Verify) -> None:
        if junit is not None:
            write_whole(junit, junit_text.format_text(document))

    on_kubernetes = rendered.is_kubernetes(path, "verify", target, options.list_given())
    if api_key_file is not None and not on_kubernetes:
        raise UserError(
            f"--api-key-file: belongs to a folder for Kubernetes, and {path} is none",
            fix="leave it out",
        )
    output.check()
    if junit is not None:
        # If a run ends without a report, an earlier report must not stay.
        junit.unlink(missing_ok=True)
    if on_kubernetes:
        return kubernetes.run(path, target, output, api_key_file, selection, write_junit)
    finished = host_reports.collect("verify", path, options, {"verify_suite": asdict(selection)})
    return host_reports.publish(
        "verify", finished, output, verify_text.format_text, _make_unreached, write_junit
    )


def _make_unreached(reason: str) -> dict[str, Any]:
    check = {"name": "machine", "status": "fail", "detail": reason, "seconds": 0.0}
    return {
        "ok": False,
        "endpoint": "",
        "vantage": "none",
        "vantage_reason": "the machine did not answer",
        "checks": [check],
        "stand_ins": [],
    }
