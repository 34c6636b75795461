"""`kimi-prov verify`: check the served model and its port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.commands import host_reports, kubernetes_verify, rendered
from kimi_prov.console import verify_text
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.playbook_run import PlaybookOptions
    from kimi_prov.console.output import Output
    from kimi_prov.errors import ExitCode
    from kimi_prov.operate.kubernetes.kubectl import Target


def run(
    path: Path, options: PlaybookOptions, output: Output, target: Target, key_file: Path | None
) -> ExitCode:
    """Check every served model; a check that fails makes it exit 1.

    `key_file`: the API key's, for the service of a cluster. On machines verify has its own.
    """
    if rendered.is_kubernetes(path, "verify", target, options.given()):
        return kubernetes_verify.run(path, target, output, key_file)
    if key_file is not None:
        raise UserError(
            f"--api-key-file: belongs to a folder for Kubernetes, and {path} is none",
            fix="leave it out",
        )
    output.check()
    finished = host_reports.collect("verify", path, options)
    return host_reports.publish("verify", finished, output, verify_text.text, _unreached)


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
