"""`cluster environment`: installs the engine's environment from the folder's locks, atomically.

    cluster environment

A virtual environment below $KIMI_ROOT/engines, and one of the hub's client where weights come from
the hub. `.complete` is written last; an environment without it is made again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from kimi_prov.contract import paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster import conda, disk_space, lock
from kimi_prov.on_host.cluster.site import Site
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from collections.abc import Sequence

_TELLS_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def main(_argv: list[str]) -> int:
    """Install what is missing."""
    site = Site.from_environment()
    conda.run_with_python(site, "environment")
    engine = site.plan["engine"]
    version = "{}.{}".format(*sys.version_info[:2])
    if version != engine["python_version"]:
        raise HostError(
            f"KIMI_PYTHON is Python {version}, and the packages are pinned for "
            f"{engine['python_version']}",
            f"name a Python {engine['python_version']}, or a module that has it, in "
            f"{site.folder}/cluster.env",
        )
    locks = [site.lock(name) for name in engine["locks"]]
    made = _ensure(site, site.engine_dir, locks, of_engine=True)
    require_hub(site, make=True)
    print(f"{site.engine_dir}: {'installed' if made else 'is complete already'}", flush=True)
    return 0


def is_complete(site: Site) -> bool:
    """Return whether all that the job installs is there."""
    hub = site.plan["installation"]["hub_client"]
    folders = [site.engine_dir, *([site.replace_root(hub["env_dir"])] if hub else [])]
    return all(os.path.exists(os.path.join(folder, paths.ENV_COMPLETE)) for folder in folders)


def require_hub(site: Site, *, make: bool) -> None:
    """Check that the hub's client is there where weights come from the hub; `make` installs it."""
    hub = site.plan["installation"]["hub_client"]
    if not hub:
        return
    folder = site.replace_root(hub["env_dir"])
    if make:
        _ensure(site, folder, [site.lock(hub["lock"])])
    elif not os.path.exists(os.path.join(folder, paths.ENV_COMPLETE)):
        raise HostError(
            f"the hub's client is not installed: {folder} is not complete",
            "sbatch jobs/environment.sbatch",
        )


def _ensure(site: Site, folder: str, locks: Sequence[str], *, of_engine: bool = False) -> bool:
    """Install one environment unless it is complete; return whether it was installed now."""
    mark = os.path.join(folder, paths.ENV_COMPLETE)
    if os.path.exists(mark):
        return False
    with lock.lock(f"{folder}.lock", lock.make_wait_printer(folder)):
        if os.path.exists(mark):
            return False
        shutil.rmtree(folder, ignore_errors=True)
        print(f"{folder}: installing from {', '.join(map(os.path.basename, locks))}", flush=True)
        try:
            make(folder)
            install(site, os.path.join(folder, "bin", "python"), locks)
            if of_engine:
                _finish(site, folder)
        except HostError as error:
            if full := disk_space.explain_full(site.root):
                raise HostError(f"{error.message}: {full}", disk_space.FIX) from None
            raise
        with open(mark, "w", encoding="utf-8"):
            pass
    return True


def make(folder: str) -> None:
    """Make a virtual environment. Raises HostError where the Python has no venv."""
    _run([sys.executable, "-I", "-m", "venv", folder], "python -m venv")


def install(site: Site, python: str, locks: Sequence[str], target: str | None = None) -> None:
    """Install the locks' packages for an interpreter; each must have one of its hashes.

    `target`: a folder beside the interpreter's own packages.
    """
    line = [python, "-I", "-m", "pip", "install", "--no-deps", "--require-hashes"]
    line += ["--only-binary=:all:", "--no-input", "--progress-bar=off", *build_source_options(site)]
    line += ["--target", target] if target else []
    for path in locks:
        line += ["--requirement", path]
    offline = "run ./prepare-login.sh on the login node first"
    online = "read pip's lines above; set KIMI_OFFLINE=1 in cluster.env where compute nodes"
    online += f" reach no network, and {offline}"
    _run(line, "pip install", offline if site.offline else online)


def build_source_options(site: Site) -> list[str]:
    """Return pip's options for where wheels come from."""
    found = []
    for folder in (site.wheels, os.path.join(site.folder, "wheels")):
        if os.path.isdir(folder):
            found += ["--find-links", folder]
    return ["--no-index", *found] if site.offline else found


def _finish(site: Site, folder: str) -> None:
    """Complete an engine's environment as the roles do on a managed machine."""
    installation = site.plan["installation"]
    metadata = installation["metadata"]
    if metadata:
        path = site.replace_root(metadata["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(metadata["content"])
    if installation["cuda_home"]:
        home = site.replace_root(installation["cuda_home"])
        line = [sys.executable, "-I", site.program, "cuda-home", home]
        _run(line, "the CUDA toolkit")
    done = run(os.path.join(folder, "bin", "python"), "-I", "-c", _TELLS_VERSION)
    if done.returncode != 0:
        raise HostError(f"{folder}: its python cannot run: {done.stderr.strip()[-300:]}")


def build_environment() -> dict[str, str]:
    """Return pip's environment. A site's pip.conf is used: each file has its hash anyway."""
    return {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_REQUIRE_VIRTUALENV": "0"}


def _run(line: list[str], what: str, fix: str | None = None) -> None:
    """Run a program whose lines go to the job's log. Raises HostError where it fails."""
    done = subprocess.run(line, check=False, env=build_environment())
    if done.returncode != 0:
        raise HostError(f"{what} ended with status {done.returncode}", fix)
