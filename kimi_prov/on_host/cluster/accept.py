"""`cluster accept JOB|newest`: the acceptance checks against the server that answers."""

from __future__ import annotations

from typing import Any, List, Mapping

from kimi_prov.contract import clean_text
from kimi_prov.contract.errors import EXIT_TRANSIENT
from kimi_prov.on_host.cluster import endpoint
from kimi_prov.on_host.cluster.site import Site
from kimi_prov.on_host.gateway import checks


def main(argv: List[str]) -> int:
    """Print a line a check; 1 where one of them failed."""
    site = Site.read()
    found, key = endpoint.with_key(site, argv[0] if argv else endpoint.NEWEST)
    print(f"job {found['job']} at {clean_text.line(found['url'])}", flush=True)
    rows = checks.run(subject(site.plan, endpoint.client(found), key))
    for row in rows:
        print(f"{row['status']:<5} {row['name']:<20} {clean_text.line(row['detail'])}", flush=True)
    failed = [row["name"] for row in rows if row["status"] == "fail"]
    print(f"{len(failed)} of {len(rows)} failed: {', '.join(failed)}" if failed else "all passed")
    return EXIT_TRANSIENT if failed else 0


def subject(plan: Mapping[str, Any], where: Any, key: str) -> checks.Subject:  # noqa: ANN401
    """Return what the plan promises at that address."""
    promised = {**plan, "proxy": {**plan["proxy"], "port": where.port}, "web": None}
    return checks.subject_of(promised, where.host, where.fingerprint, key)
