"""The plan's findings that hold in a job, and findings about what a job lacks.

Decides: jobs for a SLURM cluster (what of a plan holds there).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import pod
from kimi_prov.contract.cpu_lists import format_list
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.facts.gres import read_gres
from kimi_prov.planner.findings import Findings
from kimi_prov.render import planned
from kimi_prov.render.slurm.jobs import choose_conda, choose_python
from kimi_prov.show.text.formats import describe_engine

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.settings.parsing import Settings

# Settings that `render slurm` replaces: the site's value has no effect in a job.
_WITHOUT_EFFECT: dict[str, Any] = {
    "web_ui": False,
    "allowed_networks": [],
    **planned.WITHOUT_EFFECT,
}
_INSTEAD = {
    "hf_token_file": "put the token into $KIMI_ROOT/keys/hub-token, mode 0600",
    "bucket_credentials_file": "a role of the nodes, and rclone on them",
    "api_keys_file": "the server's job makes the key: $KIMI_ROOT/keys/api.key",
    "pip_find_links": "put the wheels into $KIMI_ROOT/wheels",
}


def adjust_settings(settings: Settings) -> Settings:
    """Return the settings as they count in a job."""
    links = settings.pip_find_links
    return replace(
        settings,
        **_WITHOUT_EFFECT,
        ram_disk="never",
        instances=1,
        ca_bundle=None,
        pip_find_links=links if links and "://" in links else None,
    )


def select_findings(
    plan: MachinePlan, settings: Settings, facts: Facts, catalogue: Catalogue
) -> list[Finding]:
    """Give the findings of a plan that is served by jobs.

    `settings` are the site's own, as they were before `adjust_settings`.
    """
    findings = Findings()
    findings.extend(planned.select_true(plan))
    _check_engine(plan, findings)
    if not settings.auto("slurm_gres"):
        _check_gres(plan, settings.slurm_gres, findings)
        _check_gres_kind(settings.slurm_gres, facts, catalogue, findings)
    if (driver := planned.describe_driver(plan)) is not None:
        findings.add(
            "slurm.driver",
            severity=driver.severity,
            observed=driver.observed,
            required=driver.required,
            fix=f"ask the administrator for nodes with {driver.required}; nvidia-smi on a node "
            "shows its version",
        )
    _check_tuning(plan, findings)
    _check_memory(plan, settings, findings)
    several = plan["parallel"]["hosts"] > 1
    findings.add(
        "slurm.firewall",
        severity="warning" if several else "info",
        observed=f"port {settings.port} and those after it, on every address of the node"
        + ("; between nodes vLLM's own ports, which ask for no key" if several else ""),
        required="the cluster's network, or the administrator's rules, keep others out",
        fix="ask the administrator who reaches the nodes' ports; take whole nodes (--exclusive)",
    )
    _describe_python(plan, settings, findings)
    _check_settings(settings, findings)
    return findings.rows()


def _describe_python(plan: MachinePlan, settings: Settings, findings: Findings) -> None:
    version, program = plan["engine"]["python_version"], choose_conda(settings)
    observed = settings.slurm_python or f"python{version}, not looked for"
    fix = "name the module in kimi_slurm_modules, or the program in kimi_slurm_python"
    if program:
        observed = f"jobs/environment.sbatch makes it by {program}: {choose_python(settings, plan)}"
        fix = f"see that a module of kimi_slurm_modules brings {program}, and that compute nodes "
        fix += "reach conda-forge"
    findings.add(
        "slurm.python",
        names={"version": version},
        observed=observed,
        required=f"Python {version} on login and compute nodes",
        fix=fix,
    )


def _check_engine(plan: MachinePlan, findings: Findings) -> None:
    engine = plan["engine"]
    if plan["conversion"] or plan["weights"]["converted"]:
        findings.add(
            "slurm.engine",
            names={"engine": "KTransformers"},
            observed=f"experts converted for {engine['name']}",
            required="experts in the format of the weights as they are published",
            fix="remove kimi_kt_method",
        )
    elif not engine["provisioned"]:
        findings.add(
            "slurm.engine_lock",
            observed=f"{describe_engine(engine)} for Python {engine['python_version']}",
            required="a lock file of the catalogue",
            fix=f"add {engine['lock']} to the locks of a catalogue of your own",
        )
    if pod.is_proxied(plan):
        findings.add(
            "slurm.proxy",
            observed="not looked at",
            required="HAProxy 2.4 or newer on the compute nodes: as a package, a module "
            "(kimi_slurm_modules) or a program of your own",
            fix="srun haproxy -v  shows it; KIMI_HAPROXY in cluster.env names another path",
        )
    if plan["hybrid"]:
        hybrid = plan["hybrid"]
        nodes = format_list(hybrid["nodes"])
        findings.add(
            "slurm.kt_kernel",
            observed=f"{hybrid['threads']} threads, pools on NUMA nodes {nodes}",
            required="a core for each thread, and all of these nodes in the job's control group",
            fix="with fewer cores the job starts fewer threads and says so; it refuses to start "
            "where a node is hidden: ask for the whole node then (--exclusive)",
        )
    if len(plan["instances"]) > 1:
        findings.add(
            "slurm.instances",
            observed=f"{len(plan['instances'])} instances were planned",
            required="one engine for each job",
            fix="submit the server's job several times with fewer GPUs: kimi_slurm_gres",
        )


def _check_gres(plan: MachinePlan, text: str, findings: Findings) -> None:
    """Refuse generic resources with which the job would end, or run another plan."""
    gres, planned_gpus = read_gres(text), len(plan["instances"][0]["gpus"])
    problem = ""
    if not gres.request:
        problem = "no GPU is among them"
    elif gres.slices:
        problem = f"{gres.kind} are slices of GPUs (MIG), which share no memory"
    elif "," in gres.kind:
        problem = f"several kinds of GPUs: {gres.kind}"
    elif gres.gpus < planned_gpus:
        problem = f"{gres.gpus} GPU{'s' if gres.gpus != 1 else ''} of each node"
    if problem and planned_gpus:
        findings.add(
            "slurm.gres",
            observed=f"kimi_slurm_gres: {text}: {problem}",
            required=f"{planned_gpus} whole GPUs of one kind on each node, as the plan uses them",
            fix=f"set kimi_slurm_gres: gpu:{planned_gpus}, or describe a node with the GPUs that "
            "a job gets; sinfo -N -o '%N %G' lists what the nodes have",
        )


def _check_gres_kind(text: str, facts: Facts, catalogue: Catalogue, findings: Findings) -> None:
    """Report a name that means other GPUs than those that were planned for."""
    kind = read_gres(text).kind
    named = catalogue.match_gpu(kind.replace("_", " "), any_size=True) if kind else None
    model = next((row["model"] for row in facts["gpus"]), None)
    planned_for = catalogue.find_gpu(model) if model else None
    if named and planned_for and _name_family(named.name) != _name_family(planned_for.name):
        findings.add(
            "slurm.gres_kind",
            observed=f"kimi_slurm_gres: {text} names {named.name}",
            required=f"{planned_for.name}, which the plan was made for",
            fix="describe the node that the job gets, or correct kimi_slurm_gres",
        )


def _name_family(name: str) -> str:
    """Return the chip of a card's name: a site names H200 what the catalogue calls H200 SXM."""
    return name.split(maxsplit=1)[0].lower()


def _check_tuning(plan: MachinePlan, findings: Findings) -> None:
    limits = ", ".join(f"{name} {value}" for name, value in plan["tuning"]["limits"].items())
    findings.add(
        "slurm.tuning",
        observed="nothing of it is set by a job",
        required="; ".join([*planned.describe_tuning(plan), f"limits of a job: {limits}"]),
        fix="ask the administrator; the model is served without, more slowly",
    )


def _check_memory(plan: MachinePlan, settings: Settings, findings: Findings) -> None:
    load, size = plan["throughput"]["load_s"], plan["weights"]["bytes"]
    always = settings.ram_disk == "always"
    seen = f"{format_bytes(size)} are read at each start"
    if load["low"] and load["high"]:
        seen += f", {load['low']:.0f} to {load['high']:.0f} s from a local disk (estimated)"
    findings.add(
        "slurm.ram_disk",
        severity="warning" if always else "info",
        observed=seen,
        required="a shared file system that reads fast enough for your patience",
        fix="remove kimi_ram_disk; ask the administrator for node-local storage (burst buffer)"
        if always
        else "ask the administrator for node-local storage (burst buffer) where it is too slow",
    )


def _check_settings(settings: Settings, findings: Findings) -> None:
    names = planned.list_without_effect(settings, _WITHOUT_EFFECT)
    if settings.pip_find_links and "://" not in settings.pip_find_links:
        names.append("pip_find_links")
    if names:
        findings.add(
            "slurm.settings",
            observed=", ".join(f"kimi_{name}" for name in names),
            required="; ".join(_INSTEAD[n] for n in names if n in _INSTEAD) or "nothing instead",
            fix="remove them for the cluster",
        )
