"""`cluster weights`: the weights of the plan below $KIMI_ROOT/models, fetched and verified once.

cluster weights             in a job; with KIMI_OFFLINE=1 it only verifies
cluster weights --online    on the login node, whatever KIMI_OFFLINE says
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster import disk_space, environment, lock
from kimi_prov.on_host.cluster.site import Site
from kimi_prov.on_host.system.job import run_job
from kimi_prov.on_host.weights import fetch

if TYPE_CHECKING:
    from kimi_prov.on_host.system.progress import Progress


def main(argv: list[str]) -> int:
    """Fetch and verify; a second job waits for the first and finds all done."""
    os.umask(0o022)
    site = Site.from_environment()
    config = build_configuration(site)
    if is_complete(site):
        print(f"{config.directory}: already verified", flush=True)
        return 0
    if site.offline and "--online" not in argv and not config.source.startswith("file://"):
        raise HostError(
            f"the weights are not in {config.directory}, and KIMI_OFFLINE is 1",
            "run ./prepare-login.sh on the login node",
        )

    environment.require_hub(site, make="--online" in argv)

    def work(config: fetch.Config, progress: Progress) -> int:
        held = lock.lock(f"{config.directory}.lock", lock.make_wait_printer(config.directory))
        try:
            with held, progress:
                progress.done(
                    "; ".join(fetch.fetch_part(part, progress) for part in config.parts())
                )
        except OSError as error:
            raise disk_space.from_system_error(error, config.directory) from None
        return 0

    return run_job("download", lambda: config, lambda config: config.progress, work)


def build_configuration(site: Site) -> fetch.Config:
    """Return the plan's settings for weights with this site's paths."""
    document = fetch.build_settings(site.plan["weights"], site.replace_root)
    token, bundle = site.locate("keys", "hub-token"), os.path.join(site.folder, "ca-bundle.pem")
    document["token_file"] = token if os.path.exists(token) else None
    document["ca_bundle"] = bundle if os.path.exists(bundle) else None
    hub = site.plan["installation"]["hub_client"]
    if hub:
        document["hf_python"] = os.path.join(site.replace_root(hub["env_dir"]), "bin", "python")
    document["progress"] = site.locate("state", "weights.json")
    # A lock that works between nodes keeps a second fetch away; flock does not work everywhere.
    document["guarded"] = True
    return fetch.Config.from_document(document, os.path.join(site.folder, "plan.json"))


def is_complete(site: Site) -> bool:
    """Return whether all weights are there and verified."""
    return all(fetch.find_verified_manifest(part) for part in build_configuration(site).parts())


def require_verified(site: Site) -> None:
    """Raise HostError where the weights are not verified."""
    config = build_configuration(site)
    missing = [
        part.directory for part in config.parts() if fetch.find_verified_manifest(part) is None
    ]
    if missing:
        raise HostError(
            f"the weights are not verified: {', '.join(missing)}", "sbatch jobs/weights.sbatch"
        )
