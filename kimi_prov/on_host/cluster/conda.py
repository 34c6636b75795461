"""The Python that the packages are pinned for, made by a site's conda where no module brings it.

KIMI_CONDA names the program and KIMI_PYTHON the prefix. A job makes it, once; until then the
module's own Python runs this program. Packages come from conda-forge: the channels of Anaconda
want their terms accepted first, and a job cannot answer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster import disk_space, lock

if TYPE_CHECKING:
    from kimi_prov.on_host.cluster.site import Site

_CHANNEL = "conda-forge"
# Beside the prefix while it is made: who finds it there without its lock begins anew.
_UNFINISHED = ".unfinished"


def run_with_python(site: Site, *words: str) -> None:
    """Go on as the Python of KIMI_PYTHON, which is made first; return where that runs already.

    Without KIMI_CONDA the site brings its Python, and nothing is made. Raises HostError.
    """
    program = site.environment.get("KIMI_CONDA", "")
    prefix = site.environment.get("KIMI_PREFIX", "")
    if not program or not prefix or os.path.realpath(sys.prefix) == os.path.realpath(prefix):
        return
    python = os.path.join(prefix, "bin", "python3")
    _ensure(site, program, prefix, python)
    sys.stdout.flush()
    os.execv(python, [python, "-I", site.program, "cluster", *words])  # noqa: S606


def _ensure(site: Site, program: str, prefix: str, python: str) -> None:
    """Make the prefix unless it is there; an unfinished one is made again."""
    unfinished = prefix + _UNFINISHED
    with lock.lock(f"{prefix}.lock", lock.make_wait_printer(prefix)):
        if os.path.exists(unfinished):
            shutil.rmtree(prefix, ignore_errors=True)
        elif os.path.exists(python):
            return
        elif os.path.exists(prefix):
            raise HostError(
                f"{prefix} is there, and has no Python",
                f"remove it, or name another folder in KIMI_PYTHON of {site.folder}/cluster.env",
            )
        path = shutil.which(program)
        if path is None:
            raise HostError(
                f"{program} is not on this node",
                f"name its module in KIMI_MODULES, or a Python in KIMI_PYTHON with KIMI_CONDA "
                f"empty, in {site.folder}/cluster.env",
            )
        with open(unfinished, "w", encoding="utf-8"):
            pass
        _create(site, path, prefix)
        os.remove(unfinished)


def _create(site: Site, program: str, prefix: str) -> None:
    version = site.plan["engine"]["python_version"]
    channel = site.environment.get("KIMI_CONDA_CHANNEL") or _CHANNEL
    print(f"{prefix}: {program} installs Python {version} from {channel}", flush=True)
    line = [program, "create", "--yes", "--quiet", "--prefix", prefix]
    line += ["--override-channels", "--channel", channel, f"python={version}"]
    # A home may be full: neither the packages nor the list of environments goes there.
    more = {"CONDA_PKGS_DIRS": site.locate("cache", "conda"), "CONDA_REGISTER_ENVS": "false"}
    done = subprocess.run(line, check=False, env={**os.environ, **more})
    if done.returncode != 0:
        full = disk_space.explain_full(site.root)
        name = os.path.basename(program)
        raise HostError(
            full or f"{name} create ended with status {done.returncode}",
            disk_space.FIX
            if full
            else f"read {name}'s lines above; where these nodes reach no network, run "
            "./prepare-login.sh on a node that does",
        )
