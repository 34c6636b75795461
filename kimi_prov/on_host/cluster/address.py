"""`cluster endpoint JOB`: a server's address and the API key, for its owner's own computer."""

from __future__ import annotations

from kimi_prov.on_host.cluster import endpoint
from kimi_prov.on_host.cluster.site import Site
from kimi_prov.on_host.system.envelope import answer


def main(argv: list[str]) -> int:
    """Print `{"endpoint": ..., "key": ...}`. Raises HostError where it does not answer."""
    site = Site.from_environment()
    found, key = endpoint.find_with_key(site, argv[0] if argv else endpoint.NEWEST)
    return answer({"endpoint": found, "key": key})
