"""Download the wheels of locks by their digests; what is there already stays."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import yaml

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.packaging import bundles, engine_plugins, lock_files, resources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.contract.documents.plan import Plan

# An index answers one request at a time slowly; three are no burden to it.
_DOWNLOADS = 3
# pip keeps nothing of a call that does not end, so that a run goes on where few packages were lost.
_BATCH = 6
# glibc 2.5, the oldest that a wheel can name.
_OLDEST_GLIBC = 5
_DEFAULT_GLIBC = "2.35"
_LEGACY = ("manylinux2014", "manylinux2010", "manylinux1")
_BLOCK = re.compile(r"^[A-Za-z0-9._-]+==(?:[^\n]*\\\n)+[^\n]*\n", re.MULTILINE)
_UNREACHED = re.compile(
    r"Retrying \(|NewConnectionError|SSLError|ProxyError|ReadTimeout|No space left", re.IGNORECASE
)


@dataclass(frozen=True)
class Target:
    """The interpreter that wheels are for: "3.11", "x86_64", and its machine's glibc."""

    python: str
    arch: str
    glibc: str | None


def make_environment(plan: Plan) -> dict[str, str]:
    """Return the variables by which pip downloads from the site's indexes, as the plan has them."""
    site, installation = plan["site"], plan.get("installation")
    extra = [*site["pip_extra_index_urls"], site["torch_index_url"]]
    if installation and installation["ask_cpu_torch_index"]:
        extra.append(_read_cpu_torch_index())
    named = {
        "PIP_INDEX_URL": site["pip_index_url"],
        "PIP_EXTRA_INDEX_URL": " ".join(filter(None, extra)),
        "PIP_FIND_LINKS": site["pip_find_links"],
        "PIP_CERT": site["ca_bundle"],
    }
    return {name: value for name, value in named.items() if value}


def _read_cpu_torch_index() -> str:
    """Return the role's default index of CPU builds of torch."""
    path = resources.find_root() / "roles" / "engine" / "defaults" / "main.yml"
    options = yaml.safe_load(path.read_text(encoding="utf-8"))
    return str(options["engine_cpu_torch_index_url"])


def gather_wheels(
    lock: Path, target: Target, into: Path, environment: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Bring a lock's wheels into a folder: the names of the files, and of packages without one."""
    _require_pip()
    into.mkdir(parents=True, exist_ok=True)
    text = lock.read_text(encoding="utf-8")
    plugin = engine_plugins.find_plugin(lock.name)
    own = engine_plugins.name_distribution(plugin) if plugin else None
    blocks = {
        pin.name: block
        for block in _BLOCK.findall(text)
        for pin in lock_files.read_pins(block)
        # Ours is made where apply runs.
        if pin.name != own
    }
    have = find_wheels(lock, target, into)
    lacking = [block for name, block in blocks.items() if name not in have]
    download = partial(_download, target=target, into=into, environment=environment)
    with ThreadPoolExecutor(_DOWNLOADS) as pool:
        starts = range(0, len(lacking), _BATCH)
        list(pool.map(download, [lacking[start : start + _BATCH] for start in starts]))
    have = find_wheels(lock, target, into)
    return sorted(have.values()), sorted(set(blocks) - set(have))


def find_wheels(lock: Path, target: Target, folder: Path) -> dict[str, str]:
    """Map packages of a lock to their files in a folder that fit the interpreter."""
    fitting = {}
    for path in lock_files.list_pinned_wheels(lock, str(folder)):
        name = path.rpartition("/")[2]
        if _is_fitting(name, target):
            fitting[lock_files.normalize_name(name.split("-")[0])] = name
    return fitting


def _is_fitting(name: str, target: Target) -> bool:
    """Whether the interpreter can use a wheel, by the tags in its name."""
    python, abi, platform = name.removesuffix(".whl").split("-")[-3:]
    if platform != "any" and not set(platform.split(".")) & set(_list_platforms(target)):
        return False
    minor = int(target.python.partition(".")[2])
    names = python.split(".")
    if abi == "abi3":
        return any(_is_older(name, "cp", minor) for name in names)
    pure = abi == "none" and any(name == "py3" or _is_older(name, "py", minor) for name in names)
    return pure or (f"cp3{minor}" in names and abi in (f"cp3{minor}", "none"))


def _is_older(tag: str, kind: str, minor: int) -> bool:
    """Whether a tag such as cp38 or py37 names this minor version of Python 3 or an earlier one."""
    version = tag.removeprefix(f"{kind}3")
    return version != tag and version.isdigit() and int(version) <= minor


def _list_platforms(target: Target) -> list[str]:
    newest = int((target.glibc or _DEFAULT_GLIBC).split(".")[1])
    tags = [f"manylinux_2_{minor}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
    return [f"{tag}_{target.arch}" for tag in (*tags, *_LEGACY, "linux")]


def _download(
    blocks: Sequence[str], *, target: Target, into: Path, environment: Mapping[str, str]
) -> None:
    """Download pinned packages; where some cannot be had, the others come nevertheless."""
    if not blocks:
        return
    request = into.parent / bundles.PARTIAL / f"{bundles.PARTIAL}-{os.getpid()}-{id(blocks)}.txt"
    request.parent.mkdir(exist_ok=True)
    request.write_text("".join(blocks), encoding="utf-8")
    tag = f"cp{target.python.replace('.', '')}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--implementation=cp"]
    command += [f"--python-version={target.python}", f"--dest={into}", f"--requirement={request}"]
    command += [f"--abi={abi}" for abi in (tag, "abi3", "none")]
    command += [f"--platform={platform}" for platform in _list_platforms(target)]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        request.unlink()
    if done.returncode and _UNREACHED.search(done.stderr):
        raise UserError(
            f"pip download failed: {done.stderr.strip().splitlines()[-1]}",
            fix="name an index that answers in kimi_pip_index_url, then run the same command "
            "again: complete files are kept",
            exit_code=ExitCode.FAILED,
        )
    if done.returncode and len(blocks) > 1:
        half = len(blocks) // 2
        for part in (blocks[:half], blocks[half:]):
            _download(part, target=target, into=into, environment=environment)


def _require_pip() -> None:
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            "pip is not installed beside kimi-prov: it downloads the wheels of an offline bundle",
            fix=f"install it:  {sys.executable} -m ensurepip  or  uv pip install pip",
        )
