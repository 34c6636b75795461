"""`cluster tune -- ARGUMENT...`: vLLM's tuner of the experts' kernels, of the engine's version."""

from __future__ import annotations

import hashlib
import os
import subprocess
import urllib.request
from pathlib import Path

from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.on_host.cluster import environment, weights
from kimi_prov.on_host.cluster.site import Site

_LOCK = "ray.txt"
_TIMEOUT_S = 120


def main(argv: list[str]) -> int:
    """Install and run the tuner; the server reads its tables at its next start."""
    site = Site.from_environment()
    site.require_environment()
    weights.require_verified(site)
    tuning = site.plan["moe_tuning"]
    if tuning is None:
        raise HostError("the plan has no tuner: its engine reads no tuned table")
    script = site.replace_root(tuning["script"])
    _download(tuning["url"], tuning["sha256"], script)
    packages = os.path.join(os.path.dirname(script), "packages")
    if not os.path.exists(os.path.join(packages, ".complete")):
        environment.install(site, site.engine_python, [site.lock(_LOCK)], target=packages)
        Path(packages, ".complete").touch()
    os.makedirs(site.replace_root(tuning["dir"]), mode=0o755, exist_ok=True)
    line = [site.engine_python, "-s", script, *[word for word in argv if word != "--"]]
    own = {**site.build_engine_environment(), "PYTHONPATH": packages}
    done = subprocess.run(line, check=False, env=own)
    if done.returncode != 0:
        raise HostError(
            f"the tuner ended with status {done.returncode}; its lines above say why",
            "correct the arguments in jobs/tune.sbatch",
        )
    print(f"tables are in {site.replace_root(tuning['dir'])}", flush=True)
    return 0


def _download(url: str, sha256: str, path: str) -> None:
    """Download the tuner unless it is there. Raises HostError for another file."""
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - https
                content = answer.read()
        except OSError as error:
            raise HostError(
                f"{url}: {describe_error(error)}", f"put the file at {path} from the login node"
            ) from None
        Path(f"{path}.part").write_bytes(content)
        os.replace(f"{path}.part", path)
    seen = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if seen != sha256:
        raise HostError(f"{path}: its SHA-256 is {seen}, not {sha256}", f"rm {path}")
