"""Render every file of a SLURM cluster's folder, from a plan and the site's settings.

Decides: jobs for a SLURM cluster.
Held by: tests/unit/render/test_slurm_render.py, tests/component/render/test_slurm_scripts.py,
  tests/component/on_host/cluster/test_cluster_serve.py.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text, pod
from kimi_prov.contract.rendered_kinds import SLURM
from kimi_prov.facts.gres import read_gres
from kimi_prov.packaging import engine_plugins, zipapp
from kimi_prov.render import folder_writer, planned, templates
from kimi_prov.render.folder_writer import File
from kimi_prov.render.slurm import flag_reasons

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.settings.parsing import Settings

_TEMPLATES = Path(__file__).resolve().parent / "templates"
_PROGRAMS = ("prepare-login.sh",)
_TUNER = "jobs/tune.sbatch"
_GIB = 1 << 30
_IGNORED = b"# What jobs print comes here; git keeps the folder alone.\n*\n!.gitignore\n"
# The slowest download onto a shared file system that was measured, bytes a second.
_SLOW_DOWNLOAD = 50e6
_RAY_LOCK = "ray.txt"
# anaconda3, Miniconda3/24.1, miniforge, mambaforge
_CONDA_MODULE = re.compile(r"conda|forge|mamba", re.IGNORECASE)


def render_folder(
    name: str,
    plan: MachinePlan,
    findings: Sequence[Finding],
    settings: Settings,
    facts: Facts,
    catalogue: Catalogue,
) -> folder_writer.RenderedFolder:
    """Give the folder's files. Pure: the same input gives the same bytes.

    `plan` and `settings` are those of a job, `findings` what holds there.
    """
    shown: MachinePlan = {**plan, "findings": [*findings]}
    values = _make_values(name, shown, settings, facts)
    files = [
        File(folder_writer.PLAN, _format_json(shown)),
        File("kimi-cluster.pyz", zipapp.make_zipapp_bytes(), 0o755),
        File(
            "logs/.gitignore",
            _IGNORED,
        ),
        *(_from_template(path, values) for path in _list_templates(plan)),
        *_list_locks(plan, catalogue),
    ]
    if settings.ca_bundle:
        files.append(File("ca-bundle.pem", Path(settings.ca_bundle).read_bytes()))
    return folder_writer.RenderedFolder(
        SLURM, name, folder_writer.compute_plan_digest(shown), files
    )


def _format_json(document: Mapping[str, Any]) -> bytes:
    return (clean_text.as_json(document) + "\n").encode()


def _list_templates(plan: MachinePlan) -> list[str]:
    """List the files of the folder; no tuner's job where nothing is tuned."""
    tuning = plan["moe_tuning"]
    names = templates.list_names(_TEMPLATES)
    return [name for name in names if name != _TUNER or (tuning and tuning["read"])]


def _from_template(path: str, values: Mapping[str, Any]) -> File:
    environment = templates.make_environment(_TEMPLATES)
    environment.filters["sh"] = flag_reasons.quote_word
    text = environment.get_template(f"{path}.j2").render(values)
    return File(path, text.encode(), 0o755 if path in _PROGRAMS else 0o644)


def _list_locks(plan: MachinePlan, catalogue: Catalogue) -> list[File]:
    """Give the lock files, and this project's own wheels that they name."""
    hub, tuning = plan["installation"]["hub_client"], plan["moe_tuning"]
    names = [*plan["engine"]["locks"], *([hub["lock"]] if hub else [])]
    names += [_RAY_LOCK] if tuning and tuning["read"] else []
    files = [
        File(f"locks/{name}", catalogue.lock(name).encode())
        for name in names
        if name in catalogue.locks or name in (_RAY_LOCK, hub and hub["lock"])
    ]
    for name in names:
        if plugin := engine_plugins.find_plugin(name):
            wheel, content = engine_plugins.make_wheel(plugin)
            files.append(File(f"wheels/{wheel}", content))
    return files


def _make_values(name: str, plan: MachinePlan, settings: Settings, facts: Facts) -> dict[str, Any]:
    """Give what the templates say."""
    gpus = len(plan["instances"][0]["gpus"])
    hosts = plan["parallel"]["hosts"]
    return {
        "name": clean_text.clean_line(name),
        "plan": plan,
        "settings": settings,
        "findings": [row for row in plan["findings"] if row["severity"] != "pass"],
        "model": plan["model"],
        "engine": plan["engine"],
        "hosts": hosts,
        "gpus": gpus,
        "gres": _format_gres(settings, gpus),
        "cpus": _count_cores(plan, facts, gpus),
        "proxied": pod.is_proxied(plan),
        "cores": facts["cpu"]["cores"],
        "memory_gib": _count_memory_gib(plan),
        "process_gib": math.ceil(pod.compute_process_bytes(plan) / _GIB),
        "weights_time": _format_hours(plan["weights"]["bytes"]),
        "numactl": [word for word in plan["instances"][0]["numactl"] if word != "numactl"],
        "flags": _list_flags(plan, settings),
        "variables": flag_reasons.explain_environment(plan),
        "python": choose_python(settings, plan),
        "conda": choose_conda(settings),
        "cpu_partition": settings.slurm_cpu_partition or settings.slurm_partition,
        "cpu_qos": settings.slurm_cpu_qos or settings.slurm_qos,
        "site": _list_site_variables(plan),
        "lengths": {"input": settings.input_tokens, "output": settings.output_tokens},
    }


def choose_conda(settings: Settings) -> str | None:
    """Return the program that makes the Python; None where the site brings one."""
    if settings.slurm_conda != "auto":
        return None if settings.slurm_conda == "none" else settings.slurm_conda
    named = any(_CONDA_MODULE.search(module) for module in settings.slurm_modules)
    return "conda" if named and settings.slurm_python is None else None


def choose_python(settings: Settings, plan: MachinePlan) -> str:
    """Return the Python of the jobs: a program, or the prefix of a conda environment."""
    name = f"python{plan['engine']['python_version']}"
    named = settings.slurm_python
    if choose_conda(settings) is None:
        return named or name
    return named if named and named.startswith("/") else f"$KIMI_ROOT/{name}"


def _list_flags(plan: MachinePlan, settings: Settings) -> list[flag_reasons.Line]:
    """Give the engine's arguments, with the seconds for answers at the end of a job."""
    lines = flag_reasons.explain_arguments(plan, settings.engine_args)
    flags = [row.text.partition(" ")[0] for row in lines]
    if drain := planned.drain(plan, flags, settings.slurm_signal_s):
        lines.append(flag_reasons.Line(" ".join(drain), "seconds for answers to end after SIGTERM"))
    return lines


def _format_gres(settings: Settings, gpus: int) -> str | None:
    if not settings.auto("slurm_gres"):
        return read_gres(settings.slurm_gres).request
    return f"gpu:{gpus}" if gpus else None


def _count_cores(plan: MachinePlan, facts: Facts, gpus: int) -> int:
    """Return the cores of a task: the node's, or the share of the GPUs that the engine uses.

    kt-kernel's threads have a core each, and the node's other cores are the server's.
    """
    cores, total = facts["cpu"]["cores"] or 1, len(facts["gpus"])
    if plan["hybrid"]:
        return cores
    return max(1, cores * gpus // total) if gpus and total else cores


def _count_memory_gib(plan: MachinePlan) -> int:
    """Return a job's GiB of a node: the processes, and the page cache of weights on GPUs."""
    needed: int = pod.compute_process_bytes(plan)
    needed += pod.count_shared_bytes(plan)
    # SLURM offers less than the node has: it leaves out the system's part.
    most = int(plan["memory"]["host_ram_available_bytes"]) * 9 // 10
    return max(1, math.ceil(min(needed, most) / _GIB))


def _format_hours(size: int) -> str:
    return f"{max(1, math.ceil(size / _SLOW_DOWNLOAD / 3600)):02d}:00:00"


def _list_site_variables(plan: MachinePlan) -> list[tuple[str, str]]:
    """Return the variables of the site's mirrors and proxy; a plan holds no password."""
    site = plan["site"]
    variables = [
        ("PIP_INDEX_URL", site["pip_index_url"]),
        ("PIP_EXTRA_INDEX_URL", " ".join(plan["installation"]["indexes"])),
        ("PIP_FIND_LINKS", site["pip_find_links"]),
    ]
    return [*((name, value) for name, value in variables if value), *planned.download(plan)]
