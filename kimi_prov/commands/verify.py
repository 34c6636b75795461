"""`kimi-prov verify`: check the served model and its port."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kimi_prov.acceptance import suite
from kimi_prov.commands.common import host_reports, rendered
from kimi_prov.commands.kubernetes import verify
from kimi_prov.errors import UserError
from kimi_prov.on_host.acceptance import catalogue
from kimi_prov.on_host.acceptance.catalogue import Selection
from kimi_prov.show.output import check_writable, write_whole
from kimi_prov.show.text import junit
from kimi_prov.show.text import verify as verify_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.errors import ExitCode
    from kimi_prov.operate.kubernetes.kubectl import Target
    from kimi_prov.show.output import Output


def selection(name: str, only: Sequence[str], leave: Sequence[str]) -> Selection:
    """Return which checks are run. Raises UserError for a name that fits no check of the suite."""
    own = catalogue.NAMES if name == catalogue.FULL else ()
    known = (*catalogue.PORT, *suite.OF_MACHINE, *own)
    for option, patterns in (("--only", only), ("--skip", leave)):
        for pattern in patterns:
            length = catalogue.may_be_needle(pattern)
            taken = any(Selection(only=(pattern,)).takes(check) for check in known)
            if not taken and not (length and name == catalogue.FULL):
                elsewhere = length or pattern in catalogue.NAMES
                raise UserError(
                    f"{option} {pattern}: no check of the suite {name} has this name; there are "
                    f"{', '.join(known)}",
                    fix="add --suite full" if elsewhere else "correct the name",
                )
    return Selection(name, tuple(only), tuple(leave))


def run(
    path: Path,
    options: PlaybookOptions,
    output: Output,
    target: Target,
    *,
    chosen: Selection,
    key_file: Path | None,
    junit_file: Path | None,
) -> ExitCode:
    """Check every served model; a check that fails makes it exit 1.

    `key_file`: the API key's, for the service of a cluster. On machines verify has its own.
    `junit_file`: where the result is written as JUnit XML too.
    """
    if junit_file is not None:
        check_writable("--junit", junit_file)
        if output.file is not None and junit_file.resolve() == output.file.resolve():
            raise UserError(
                f"--junit {junit_file}: --output names the same file", fix="name another file"
            )

    def also(document: Mapping[str, Any]) -> None:
        if junit_file is not None:
            write_whole(junit_file, junit.text(document))

    kubernetes = rendered.is_kubernetes(path, "verify", target, options.given())
    if key_file is not None and not kubernetes:
        raise UserError(
            f"--api-key-file: belongs to a folder for Kubernetes, and {path} is none",
            fix="leave it out",
        )
    output.check()
    if junit_file is not None:
        # A run that ends without a report must not leave that of an earlier one.
        junit_file.unlink(missing_ok=True)
    if kubernetes:
        return verify.run(path, target, output, key_file, chosen, also)
    finished = host_reports.collect("verify", path, options, {"verify_suite": asdict(chosen)})
    return host_reports.publish("verify", finished, output, verify_text.text, _unreached, also)


def _unreached(why: str) -> dict[str, Any]:
    check = {"name": "machine", "status": "fail", "detail": why, "seconds": 0.0}
    return {
        "ok": False,
        "endpoint": "",
        "vantage": "none",
        "vantage_reason": "the machine did not answer",
        "checks": [check],
        "stand_ins": [],
    }
