"""`cluster wheels`: the wheels of the locks into $KIMI_ROOT/wheels, for nodes without network."""

from __future__ import annotations

import os
import subprocess
from tempfile import TemporaryDirectory

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster import conda, environment, lock
from kimi_prov.on_host.cluster.site import Site


def main(_argv: list[str]) -> int:
    """Download what is missing; pip checks the hash of each file."""
    site = Site.from_environment({**os.environ, "KIMI_OFFLINE": "0"})
    conda.run_with_python(site, "wheels")
    os.makedirs(site.wheels, mode=0o755, exist_ok=True)
    cache = site.locate("cache")
    os.makedirs(cache, mode=0o755, exist_ok=True)
    with (
        lock.lock(site.locate("wheels.lock"), lock.make_wait_printer(site.wheels)),
        TemporaryDirectory(dir=cache, prefix="pip-") as folder,
    ):
        # A distribution's own Python may have no pip.
        environment.make(folder)
        python = os.path.join(folder, "bin", "python")
        for path in site.locks().values():
            line = [python, "-I", "-m", "pip", "download", "--no-deps", "--no-input"]
            line += ["--require-hashes", "--only-binary=:all:", "--progress-bar=off"]
            line += [
                "--dest",
                site.wheels,
                *environment.build_source_options(site),
                "--requirement",
                path,
            ]
            done = subprocess.run(line, check=False, env=environment.build_environment())
            if done.returncode != 0:
                raise HostError(
                    f"pip download of {os.path.basename(path)} ended with status {done.returncode}",
                    "read pip's lines above; run it again: what has arrived is kept",
                )
    print(f"{site.wheels}: every wheel of the locks is there", flush=True)
    return 0
