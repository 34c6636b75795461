"""The site's replacements of the internet: mirrors, indexes, certificate authorities, a proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.planner.hosts import forward_proxy

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan.software import SitePlan
    from kimi_prov.planner.settings.parsing import Settings


def make_document(settings: Settings) -> SitePlan:
    """Give the plan's `site`."""
    return {
        "apt_mirror": settings.apt_mirror,
        "pip_index_url": settings.pip_index_url,
        "pip_extra_index_urls": list(settings.pip_extra_index_urls),
        "pip_find_links": settings.pip_find_links,
        "torch_index_url": settings.torch_index_url,
        "python_mirror": settings.python_mirror,
        "ca_bundle": settings.ca_bundle,
        "proxy": forward_proxy.make_document(settings),
    }
