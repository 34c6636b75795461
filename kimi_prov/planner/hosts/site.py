"""The site's replacements of the internet: mirrors, indexes, certificate authorities, a proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import paths
from kimi_prov.planner.hosts import forward_proxy

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan.software import OfflineBundle, SitePlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.settings.parsing import Settings


def make_document(settings: Settings, host: Host) -> SitePlan:
    """Give the plan's `site`."""
    made: SitePlan = {
        "apt_mirror": settings.apt_mirror,
        "pip_index_url": settings.pip_index_url,
        "pip_extra_index_urls": list(settings.pip_extra_index_urls),
        "pip_find_links": settings.pip_find_links,
        "torch_index_url": settings.torch_index_url,
        "python_mirror": settings.python_mirror,
        "ca_bundle": settings.ca_bundle,
        "proxy": forward_proxy.make_document(settings),
    }
    if settings.bundle:
        made["bundle"] = _make_bundle_section(settings.bundle, host)
    return made


def _make_bundle_section(folder: str, host: Host) -> OfflineBundle:
    """Say where the archive for the host's system lies, here and there."""
    archive = (
        f"{folder}/apt/{name_archive(f'{host.system.id}-{host.system.version}', host.system.arch)}"
    )
    return {
        "dir": folder,
        "archive": f"{archive}.tar",
        "signature": f"{archive}.sig",
        "keyring": f"{folder}/key.gpg",
        "source": paths.OFFLINE,
    }


def name_archive(system: str, arch: str | None) -> str:
    """Return the name of an archive for a system such as "debian-12"."""
    return f"{system}-{arch or 'x86_64'}"
