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
    site = Site.read()
    config = configuration(site)
    if complete(site):
        print(f"{config.directory}: is verified already", flush=True)
        return 0
    if site.offline and "--online" not in argv and not config.source.startswith("file://"):
        raise HostError(
            f"the weights are not in {config.directory}, and KIMI_OFFLINE is 1",
            "run ./prepare-login.sh on the login node",
        )

    environment.require_hub(site, make="--online" in argv)

    def work(config: fetch.Config, progress: Progress) -> int:
        held = lock.held(f"{config.directory}.lock", lock.wait_message(config.directory))
        try:
            with held, progress:
                progress.done("; ".join(fetch.bring(part, progress) for part in config.parts()))
        except OSError as error:
            raise disk_space.named(error, config.directory) from None
        return 0

    return run_job("download", lambda: config, lambda config: config.progress, work)


def configuration(site: Site) -> fetch.Config:
    """Return the plan's settings for weights with this site's paths."""
    document = fetch.of_plan(site.plan["weights"], site.place)
    token, bundle = site.at("keys", "hub-token"), os.path.join(site.folder, "ca-bundle.pem")
    document["token_file"] = token if os.path.exists(token) else None
    document["ca_bundle"] = bundle if os.path.exists(bundle) else None
    hub = site.plan["installation"]["hub_client"]
    if hub:
        document["hf_python"] = os.path.join(site.place(hub["env_dir"]), "bin", "python")
    document["progress"] = site.at("state", "weights.json")
    # Two fetches exclude each other by a lock that holds between nodes; flock does not everywhere.
    document["guarded"] = True
    return fetch.Config.of(document, os.path.join(site.folder, "plan.json"))


def complete(site: Site) -> bool:
    """Whether all weights are there and verified."""
    return all(fetch.verified(part) for part in configuration(site).parts())


def require(site: Site) -> None:
    """Raise HostError where the weights are not verified."""
    config = configuration(site)
    missing = [part.directory for part in config.parts() if fetch.verified(part) is None]
    if missing:
        raise HostError(
            f"the weights are not verified: {', '.join(missing)}", "sbatch jobs/weights.sbatch"
        )
