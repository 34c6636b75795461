"""`pod fetch`: the weights of the plan on the volume, fetched and verified once.

Jobs that share a volume exclude each other; what has arrived is kept when one ends.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from kimi_prov.contract import paths, pod
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster import lock
from kimi_prov.on_host.pod.mounts import Mounts
from kimi_prov.on_host.system.job import run_job
from kimi_prov.on_host.weights import fetch

if TYPE_CHECKING:
    from kimi_prov.on_host.system.progress import Progress

_SAY_EVERY_S = 10.0


def main(argv: list[str]) -> int:
    """Fetch and verify; return 0 when all is there, whether it was before or not."""
    argparse.ArgumentParser(prog="fetch", description="Fetch the weights.").parse_args(argv)
    os.umask(0o022)
    mounts = Mounts.from_environment()
    config = build_configuration(mounts)
    if all(fetch.find_verified_manifest(part) for part in config.parts()):
        print(f"{config.directory}: already verified", flush=True)
        return 0
    _require_writable(mounts)

    def work(config: fetch.Config, progress: Progress) -> int:
        # For pods of several nodes: flock does not work on every volume.
        with (
            lock.lock(f"{config.directory}.lock", lock.make_wait_printer(config.directory)),
            progress,
        ):
            progress.tell_every(_SAY_EVERY_S)
            progress.done("; ".join(fetch.fetch_part(part, progress) for part in config.parts()))
        return 0

    return run_job("download", lambda: config, lambda config: config.progress, work)


def build_configuration(mounts: Mounts) -> fetch.Config:
    """Return the plan's settings for weights as the pod has them."""
    bundle, token = mounts.find(pod.CA_BUNDLE), mounts.find(pod.HUB_TOKEN)
    document = {
        **fetch.build_settings(mounts.plan["weights"], mounts.locate),
        "token_file": token,
        "ca_bundle": bundle,
        "hf_python": mounts.locate(f"{pod.HUB}/bin/python"),
        "progress": mounts.run("fetch.json"),
        "guarded": True,
    }
    return fetch.Config.from_document(document, mounts.locate(pod.PLAN))


def explain_unverified(mounts: Mounts) -> str:
    """Return why the weights cannot be served; empty where they are verified."""
    missing = [
        part.directory
        for part in build_configuration(mounts).parts()
        if fetch.find_verified_manifest(part) is None
    ]
    if not missing:
        return ""
    return (
        f"the weights are not verified: {', '.join(missing)}; kubectl logs of the fetch Job say why"
    )


def _require_writable(mounts: Mounts) -> None:
    root = mounts.locate(paths.ROOT)
    if os.access(root, os.W_OK | os.X_OK):
        return
    state = os.stat(root) if os.path.exists(root) else None
    found = f"mode {state.st_mode & 0o7777:04o} of {state.st_uid}:{state.st_gid}" if state else ""
    raise HostError(
        f"{root} cannot be written by user {os.getuid()}:{os.getgid()} ({found or 'not mounted'})",
        "mount the volume there, with fsGroup 10001, and not read-only",
    )
