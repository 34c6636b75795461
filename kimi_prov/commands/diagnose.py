"""`kimi-prov diagnose`: a bundle for a bug report, and the known faults that it shows."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import click

from kimi_prov import __version__
from kimi_prov.commands.common import (
    file_transfer,
    gateway_faults,
    group_lifecycle,
    host_reports,
    playbook_run,
)
from kimi_prov.commands.common.options import PATH, add_inventory_options
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.operate.diagnosis import bundle, evidence, rules
from kimi_prov.runner import redaction
from kimi_prov.show.text import diagnose as diagnose_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.runner.redaction import Masker
    from kimi_prov.show.output import Output


@click.command()
@add_inventory_options(
    click.option(
        "--to",
        type=PATH,
        metavar="FILE",
        help="The bundle to write.  [default: kimi-diagnose-TIME.tar.gz here]",
    ),
)
def diagnose(path: Path, options: PlaybookOptions, output: Output, to: Path | None) -> ExitCode:
    """Write a bundle for a bug report, and report known faults in logs and metrics.

    The bundle has facts, plan, units, logs, metrics and versions of each host, secrets masked; only
    you may read it. Exits 3 for a fault that keeps the model from serving.
    """
    output.check()
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = f"kimi-diagnose-{when}"
    file = to or Path(f"{name}.tar.gz")
    file_transfer.require_new(file)
    with tempfile.TemporaryDirectory(prefix="kimi-diagnose-") as folder:
        variables = {"diagnose_folder": folder}
        inventory, request = playbook_run.prepare("diagnose", "diagnose", path, options, variables)
        masker = redaction.make_masker(
            inventory.machines, inventory.base, request.connection.secrets()
        )
        finished = playbook_run.run(request, inventory)
        gathered = {
            host: found
            for host in inventory.machines
            if (found := _read(Path(folder) / f"host-{quote(host, safe='')}.json", masker))
        }
    statuses = group_lifecycle.mark_sleeping_ranks(
        {host: found.get("status") or {} for host, found in gathered.items()}
    )
    split = gateway_faults.find_split_gateways(statuses)
    hosts = {
        host: _build_entry({**found, "status": statuses[host]}, split.get(host, ""))
        for host, found in gathered.items()
    }
    host_reports.add_failed(hosts, finished.outcome.failures, _make_unreached)
    blockers = [row for host in hosts.values() for row in host["findings"] if _is_blocker(row)]
    document = {
        "schema": "kimi-prov/diagnose/v1",
        "ok": bool(hosts) and all(host["ok"] for host in hosts.values()),
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "version": __version__,
        "bundle": None,
        "bundle_bytes": None,
        "hosts": hosts,
    }
    if gathered:
        document["bundle"] = str(file)
        document["bundle_bytes"] = _write(file, name, document, gathered)
    if hosts:
        output.write(document, lambda: diagnose_text.format_text(document))
    return playbook_run.conclude(finished, *([ExitCode.BLOCKED] if blockers else []))


def _read(file: Path, masker: Masker) -> Mapping[str, Any]:
    """Return what a host gathered, masked; empty where there is no file.

    Keys in local files that its plan names are masked too.
    """
    if not file.exists():
        return {}
    # The plugin wrote the file from an answer that it had cleaned.
    found = json.loads(file.read_text(encoding="utf-8"))
    plan = found.get("plan") if isinstance(found, dict) else None
    if isinstance(plan, dict):
        masker.add(redaction.find_plan_secrets(cast("MachinePlan", plan)))
    masked = redaction.mask_value(found, masker.mask)
    return masked if isinstance(masked, dict) else {}


def _build_entry(gathered: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return a host's entry: the findings, and what could not be gathered.

    `split`: the hosts that have this gateway's address as well.
    """
    status = gathered.get("status") or {}
    found = rules.run_rules(evidence.read_evidence(gathered, split))
    return {
        "ok": bool(status.get("ok")) and not any(map(_is_blocker, found)),
        "reached": True,
        "provisioned": bool(status.get("provisioned")),
        "detail": str(status.get("detail") or "nothing is known of what runs"),
        "findings": found,
        "missing": dict(gathered.get("missing") or {}),
    }


def _make_unreached(why: str) -> dict[str, Any]:
    return {
        "ok": False,
        "reached": False,
        "provisioned": False,
        "detail": why,
        "findings": [],
        "missing": {},
    }


def _is_blocker(finding: Mapping[str, Any]) -> bool:
    return bool(finding["severity"] == "blocker")


def _write(
    file: Path, name: str, document: Mapping[str, Any], gathered: Mapping[str, Mapping[str, Any]]
) -> int:
    try:
        return bundle.write(file, name, bundle.list_files(document, gathered))
    except OSError as error:
        raise UserError(
            f"{file}: cannot be written: {error.strerror}",
            fix="make room there, or name a file elsewhere with --to",
            exit_code=ExitCode.FAILED,
        ) from error
