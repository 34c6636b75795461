"""What is installed: Python environments, their package indexes, and what completes them.

Decides: environments that are installed, and package indexes.
Applied by: roles/engine, roles/weights.
Held by: tests/unit/planner/software/test_installation.py.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from kimi_prov.contract import paths
from kimi_prov.planner.engine import interpreter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.pythons import Interpreter
    from kimi_prov.contract.documents.plan.engine import InstancePlan
    from kimi_prov.contract.documents.plan.software import (
        BroughtPython,
        ForwardProxyPlan,
        HubClientPlan,
        InstallationPlan,
        PackageInstallation,
        PackageMetadata,
    )
    from kimi_prov.contract.documents.plan.weights import WeightsPlan
    from kimi_prov.planner.decisions import EngineChoice
    from kimi_prov.planner.settings.parsing import Settings

UV_LOCK = "uv.txt"
HUB_LOCK = "hf-tools.txt"


def make_document(
    settings: Settings,
    choice: EngineChoice,
    catalogue: Catalogue,
    env_dir: str,
    instance: InstancePlan,
    fetched: WeightsPlan,
    proxy: ForwardProxyPlan | None,
) -> InstallationPlan:
    """Make the plan's `installation` from its environment, instance, weights and proxy.

    `ask_cpu_torch_index`: torch comes from PyTorch's index of CPU builds, because PyPI has none and
    the inventory names no other index.
    """
    engine = choice.engine
    return {
        **make_package_section(
            settings,
            choice.interpreter,
            catalogue,
            proxy,
            torch_on_cpu=engine.variant == "cpu",
        ),
        "metadata": _find_cpu_build_metadata(choice, env_dir),
        "cuda_home": instance["env"].get("CUDA_HOME"),
        "kt_kernels": paths.KT_CUDA if engine.name == "ktransformers" else None,
        "experts_kernel": _make_experts_kernel_command(choice, env_dir),
        "hub_client": _make_hub_client_section(catalogue, fetched),
    }


def make_package_section(
    settings: Settings,
    build: Interpreter | None,
    catalogue: Catalogue,
    proxy: ForwardProxyPlan | None,
    *,
    torch_on_cpu: bool = False,
) -> PackageInstallation:
    """Make the part of the plan's `installation` that every set of pinned packages needs.

    `build`: the bundled interpreter, None for the machine's own; `proxy`: the plan's `site.proxy`.
    """
    folder = f"{paths.TOOLS}/install"
    return {
        "dir": folder,
        "wheels": f"{folder}/wheels",
        "cache": f"{folder}/cache",
        "uv_lock": UV_LOCK,
        "python": _make_python_section(settings, build, folder),
        "uv_dir": f"{paths.TOOLS}/uv-{_find_pinned_version(catalogue.lock(UV_LOCK), 'uv')}",
        "pip_environment": _make_pip_environment(settings),
        "uv_environment": _make_uv_environment(settings),
        "run": _make_command_prefix(proxy),
        # A command that downloads nothing does not get the site's proxy.
        "run_offline": _make_command_prefix(None),
        "indexes": [
            *settings.pip_extra_index_urls,
            *([settings.torch_index_url] if settings.torch_index_url else []),
        ],
        "ask_cpu_torch_index": torch_on_cpu
        and not settings.torch_index_url
        and not settings.pip_find_links,
        "ca_bundle": paths.CA_BUNDLE if settings.ca_bundle else None,
    }


def _make_python_section(
    settings: Settings, build: Interpreter | None, folder: str
) -> BroughtPython | None:
    """Describe the bundled interpreter; None where the machine's own is used.

    `downloads` has the form of uv's own list, from which uv reads the archive's digest. `archive`:
    the path to which the archive is copied from a directory of the control machine.
    """
    if build is None:
        return None
    mirror = settings.python_mirror
    archive = f"{folder}/{build.archive}" if mirror and "://" not in mirror else None
    url = f"file://{archive}" if archive else build.mirrored(mirror)
    return {
        "name": build.name,
        "version": build.version,
        "build": build.build,
        "url": url,
        "sha256": build.sha256,
        "dir": interpreter.build_directory(build),
        "archive": archive,
        "request": build.key,
        "list": f"{folder}/python.json",
        "downloads": {build.key: describe_download(build, url)},
    }


def describe_download(build: Interpreter, url: str) -> dict[str, object]:
    """Return a build's row of uv's own list, from which uv reads the archive's digest."""
    major, minor, patch = map(int, build.version.split("."))
    return {
        "name": "cpython",
        "arch": {"family": build.arch, "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "url": url,
        "sha256": build.sha256,
        "variant": None,
        "build": build.build,
    }


def _make_command_prefix(proxy: ForwardProxyPlan | None) -> list[str]:
    """Return the words before a command, which run it in a unit, with the site's proxy if any.

    The proxy's URL may hold a password, so the unit reads it from a file. Other variables are
    passed by name: no argument list shows their values, but the unit's properties do, to everybody.
    """
    return [
        *("systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--property=UMask=0022"),
        *([f"--property=EnvironmentFile={proxy['environment']}"] if proxy else []),
    ]


def _find_pinned_version(lock: str, package: str) -> str:
    match = re.search(rf"^{package}==(\S+)", lock, re.MULTILINE)
    if match is None:
        raise ValueError(f"the lock pins no {package}")
    return match[1]


def _find_links(settings: Settings) -> str | None:
    """Return the URL of a page of links; files of a local directory are copied instead."""
    links = settings.pip_find_links
    return links if links and "://" in links else None


def _make_pip_environment(settings: Settings) -> dict[str, str]:
    return _drop_unset(
        {
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_INDEX_URL": settings.pip_index_url,
            "PIP_EXTRA_INDEX_URL": " ".join(settings.pip_extra_index_urls),
            "PIP_FIND_LINKS": _find_links(settings),
            "PIP_NO_INDEX": "1" if settings.bundle else None,
            "PIP_CERT": paths.CA_BUNDLE if settings.ca_bundle else None,
        }
    )


def _make_uv_environment(settings: Settings) -> dict[str, str]:
    return _drop_unset(
        {
            "UV_PYTHON_DOWNLOADS": "never",
            # Several indexes may have a package of one name; the lock's hashes choose the file.
            "UV_INDEX_STRATEGY": "unsafe-best-match",
            "UV_DEFAULT_INDEX": settings.pip_index_url,
            "UV_FIND_LINKS": _find_links(settings),
            "UV_OFFLINE": "1" if settings.bundle else None,
            "SSL_CERT_FILE": paths.CA_BUNDLE if settings.ca_bundle else None,
        }
    )


def _drop_unset(variables: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if value}


def _find_cpu_build_metadata(choice: EngineChoice, env_dir: str) -> PackageMetadata | None:
    """Return the metadata from which vLLM's command recognises its CPU build, None for others."""
    metadata = make_engine_metadata(choice.engine, choice.python.version or "")
    return metadata and {**metadata, "path": f"{env_dir}/{metadata['path']}"}


def make_engine_metadata(engine: Engine, python: str) -> PackageMetadata | None:
    """Return the metadata of a CPU build, with its path for a Python version such as "3.11"."""
    if (engine.name, engine.variant) != ("vllm", "cpu"):
        return None
    version = f"{engine.version}+cpu"
    return {
        "path": f"lib/python{python}/site-packages/vllm-{version}.dist-info/METADATA",
        "content": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
    }


def _make_experts_kernel_command(choice: EngineChoice, env_dir: str) -> str | None:
    """Return the script that compiles the experts plugin's kernel, None without the plugin.

    The kernel is compiled for every backend: they share one environment, and an operator may change
    from one to another.
    """
    if choice.experts is None:
        return None
    site = f"{env_dir}/lib/python{choice.python.version}/site-packages"
    return f"{site}/kimi_kt_experts/build.py"


def _make_hub_client_section(catalogue: Catalogue, weights: WeightsPlan) -> HubClientPlan | None:
    """Return the environment of the hub's client, None where no weights come from the hub.

    Each version of the client's lock has its own environment.
    """
    parts = [part for part in (weights, weights["draft"], weights["converted"]) if part]
    if not any(part["source"].startswith("hf://") for part in parts):
        return None
    mark = hashlib.sha256(catalogue.lock(HUB_LOCK).rstrip().encode()).hexdigest()[:12]
    env_dir = f"{paths.TOOLS}/hub-{mark}"
    return {"lock": HUB_LOCK, "env_dir": env_dir, "python": f"{env_dir}/bin/python"}
