"""`cluster accept JOB|newest [--suite full]`: the checks against the server that answers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.contract.errors import EXIT_TRANSIENT
from kimi_prov.on_host.acceptance import catalogue, expectations
from kimi_prov.on_host.acceptance import run as acceptance
from kimi_prov.on_host.acceptance.catalogue import Exam
from kimi_prov.on_host.acceptance.target import MachineTarget
from kimi_prov.on_host.cluster import endpoint
from kimi_prov.on_host.cluster.site import Site
from kimi_prov.on_host.endpoint import checks

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.on_host.acceptance.verdicts import Row


def main(argv: list[str]) -> int:
    """Print a line a check; return 1 where one of them failed."""
    parser = argparse.ArgumentParser(prog="accept")
    parser.add_argument("job", nargs="?", default=endpoint.NEWEST)
    parser.add_argument("--suite", choices=catalogue.SUITES, default=catalogue.BASIC)
    options = parser.parse_args(argv)
    site = Site.from_environment()
    found, key = endpoint.find_with_key(site, options.job)
    print(f"job {found['job']} at {clean_text.clean_line(found['url'])}", flush=True)
    exam = Exam(
        build_subject(site.plan, endpoint.build_client_endpoint(found), key),
        expectations.from_plan(site.plan),
        MachineTarget(
            None, "a job is tested only through its port, and has no unit for code of a model"
        ),
    )

    def batch(names: list[str]) -> list[Row]:
        done = acceptance.run(exam, names, lambda _: None)
        for row in done:
            print(_format_line(row), flush=True)
        return done

    rows = acceptance.run_selection(catalogue.Selection(options.suite), exam, batch)
    failed = [row["name"] for row in rows if row["status"] == "fail"]
    left = sum(row["status"] == "skip" for row in rows)
    run = len(rows) - left
    told = f"{len(failed)} failed: {', '.join(failed)}" if failed else "all passed"
    print(f"of {run} checks that were run {told}; {left} not run")
    return EXIT_TRANSIENT if failed else 0


def _format_line(row: Row) -> str:
    told = f"{row['status']:<5} {row['name']:<20} {clean_text.clean_line(row['detail'])}"
    if row.get("observed"):
        told += clean_text.clean_line(f"; expected {row['expected']}, came {row['observed']}")
    return told


def build_subject(plan: MachinePlan, where: Any, key: str) -> checks.Subject:  # noqa: ANN401
    """Return what the plan promises at that address."""
    promised: MachinePlan = {**plan, "proxy": {**plan["proxy"], "port": where.port}, "web": None}
    return checks.build_subject(promised, where.host, where.fingerprint, key)
