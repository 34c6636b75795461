"""Facts, settings and the catalogue become the plan: every decision of the product, made here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths, unit_names
from kimi_prov.contract.sizes import human
from kimi_prov.facts import gpu_names
from kimi_prov.facts import host as hosts
from kimi_prov.planner import driver as drivers
from kimi_prov.planner import installation, remediation, rules, stand_in, system
from kimi_prov.planner.decisions import Bound, Served, Workload
from kimi_prov.planner.engine import (
    command,
    expert_backend,
    flag_names,
    moe_tuning,
    selection,
    speculative,
)
from kimi_prov.planner.findings import Findings
from kimi_prov.planner.memory import cpu, numa
from kimi_prov.planner.memory import gpu as graphics
from kimi_prov.planner.registry import DEFINITIONS
from kimi_prov.planner.rules.context import PlanContext
from kimi_prov.planner.storage import conversion
from kimi_prov.planner.storage import weights as storage
from kimi_prov.planner.throughput import prediction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.loader import Catalogue, Model
    from kimi_prov.planner.decisions import Budget, Choice, Converted, Placement, RamDisk, Weights
    from kimi_prov.planner.settings.parsing import Settings

SCHEMA = "kimi-prov/plan/v1"
# Seconds before the engine answers: starting itself, then reading weights at this rate.
_START_S = 900
_LOAD_BYTES_PER_S = 250_000_000
# Seconds that a unit has at least: one that is killed before it is ready never serves.
_UNIT_START_S = 3600


def make_plan(facts: Mapping[str, Any], settings: Settings, catalogue: Catalogue) -> dict[str, Any]:
    """Decide everything for one machine. Pure: the same input gives the same plan.

    Nothing that moves by itself (free memory, free disk, what is converged already) is in the
    plan, findings aside. Raises UserError for an unknown model.
    """
    real = _plan(facts, settings, catalogue)
    if not settings.engine_stand_in:
        return real
    instead = stand_in.settings(settings, real["model"]["served_names"])
    return stand_in.laid_over(real, _plan(stand_in.facts(facts), instead, catalogue))


def _plan(facts: Mapping[str, Any], settings: Settings, catalogue: Catalogue) -> dict[str, Any]:
    findings = Findings()
    host = hosts.read(gpu_names.recognised(facts, catalogue), catalogue)
    model = catalogue.model(settings.model)
    system.judge(host, catalogue, findings)
    choice = selection.choose(host, settings, catalogue, model, findings)
    settings = _migrated(host, settings, model, choice, catalogue, findings)
    draft = speculative.document(settings, catalogue, model, choice.engine, findings)
    driver = drivers.driver(
        host, settings, choice.engine, catalogue, choice.weights_format, findings
    )
    budget = _budget(host, settings, model, choice, catalogue, findings)
    names = flag_names.names(choice.engine.name)
    cpu.judge(host, settings, model, budget, names, findings)
    weights = storage.weights(settings, model, choice.weights_format, findings)
    places = _places(host, model, choice, budget, catalogue, findings)
    where = places[0]
    bound = _bound(host, budget, places)
    proposed = command.flags(settings, model, choice, budget, where, host.capability)
    proposed |= speculative.flags(draft)
    chosen = command.merged(proposed, settings, names, findings)
    converted = conversion.wanted(settings, model, choice, weights, chosen, findings)
    ram_disk = storage.ram_disk(host, settings, weights, bound, findings, converted=converted)
    files_dir = weights.directory.replace(paths.MODELS, paths.RAM, 1)
    served = Served(
        files_dir if ram_disk.enabled else weights.directory,
        list(settings.served_names) or [model.name],
        converted.directory if converted else None,
    )
    backends = [{"index": n, "port": settings.port + 1 + n} for n in range(budget.instances)]
    warm = _warm(ram_disk, host, weights, bound.total, converted)
    start_s = _start_s(settings, weights)
    system.judge_ports(host, [settings.port, *[b["port"] for b in backends]], findings)
    plan = {
        "schema": SCHEMA,
        "stand_in": None,
        "engine": _engine(choice),
        "model": _model(model, weights, choice, budget, served),
        "weights": {
            **_weights(settings, weights, draft),
            "converted": conversion.fetched(converted, settings),
        },
        "conversion": conversion.document(converted, choice, model, chosen),
        "instances": [
            _instance(host, choice, budget, where, chosen, backend, served)
            for backend, where in zip(backends, places, strict=True)
        ],
        "memory": cpu.document(budget, host, ram_disk.size_bytes),
        "parallel": _parallel(budget, chosen),
        "hybrid": _hybrid(choice, budget, where),
        "experts": expert_backend.document(choice.experts, where),
        "speculative": {key: draft[key] for key in ("name", "method", "tokens")} if draft else None,
        "throughput": prediction.document(
            host, settings, model, choice, budget, where, in_memory=ram_disk.enabled
        ),
        "moe_tuning": moe_tuning.document(choice, model, budget, served.directory),
        "power": prediction.power(host, catalogue),
        "ram_disk": {
            "enabled": ram_disk.enabled,
            "size_bytes": ram_disk.size_bytes,
            "reason": ram_disk.reason,
            "path": paths.RAM,
            "options": ram_disk.options,
            "workers": max(1, min(8, len(host.primary))),
            "files_dir": files_dir,
            **_memory_units(ram_disk, warm),
        },
        "warm": warm,
        "disk": storage.disk(
            host,
            weights,
            choice,
            findings,
            draft_bytes=draft["bytes"] if draft else 0,
            converted=converted,
        ),
        "tuning": system.tuning(host, on_cpu=not host.gpu_bytes),
        "proxy": _proxy(host, settings, backends),
        "firewall": system.firewall(host, settings),
        "driver": driver,
        "nccl": {"guard": bool(host.gpu_bytes) and not host.amd},
        "packages": system.packages(
            host,
            choice.python.path,
            compiles=command.compiles(choice, chosen),
            drives=driver["repository"] is not None,
        ),
        "site": {
            "apt_mirror": settings.apt_mirror,
            "pip_index_url": settings.pip_index_url,
            "pip_extra_index_urls": list(settings.pip_extra_index_urls),
            "pip_find_links": settings.pip_find_links,
            "torch_index_url": settings.torch_index_url,
            "ca_bundle": settings.ca_bundle,
        },
        "control": {
            "api_keys_file": settings.api_keys_file,
            "hf_token_file": settings.hf_token_file,
        },
        "timeouts": {"start_s": start_s, "unit_start_s": max(_UNIT_START_S, start_s)},
        "paths": paths.paths(),
        "units": unit_names.units(),
        "marks": paths.marks(),
        "users": paths.users(),
    }
    plan["installation"] = installation.document(settings, choice, catalogue, plan)
    _judge_door(settings, findings)
    context = PlanContext(
        host, settings, catalogue, model, choice, budget, where, bound, proposed, chosen, plan
    )
    findings.extend(rules.judge(context))
    return {**plan, "findings": remediation.priced(findings.rows(), context)}


def blockers(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the findings that forbid to go on."""
    return [row for row in plan["findings"] if row["severity"] == "blocker"]


def refusals(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what forbids `apply`: the blockers, and what this version plans but cannot carry out.

    The plan is a true answer for a buyer without these; a machine must not be half provisioned.
    What `apply` itself mends does not forbid it.
    """
    wanting = [
        {**row, "severity": "blocker"}
        for row in plan["findings"]
        if DEFINITIONS[row["id"]].blocks_apply and row["severity"] != "blocker"
    ]
    fixed = {"always", *(["driver"] if plan["driver"]["action"] != "none" else [])}
    found = [*blockers(plan), *wanting]
    return [row for row in found if DEFINITIONS[row["id"]].fixed_by_apply not in fixed]


def _budget(
    host: hosts.Host,
    settings: Settings,
    model: Model,
    choice: Choice,
    catalogue: Catalogue,
    findings: Findings,
) -> Budget:
    work = Workload(choice.engine, model, choice.weights_format)
    if choice.hybrid:
        return graphics.hybrid(host, settings, catalogue, work)
    if choice.on_gpus is None:
        routed = expert_backend.resident_bytes(catalogue, choice.experts, model)
        resident = cpu.cpu_resident_bytes(model, choice.weights_format, routed)
        slices = expert_backend.slices(host, catalogue, choice.experts, model)
        least = resident + choice.engine.overhead_bytes + cpu.GIB
        if choice.experts == "kt":
            count = expert_backend.instances(settings, findings)
        else:
            count = numa.copies(host, settings, least, findings)
        return cpu.on_cpu(host, settings, work, resident, slices, count)
    return choice.on_gpus.budget


def _places(
    host: hosts.Host,
    model: Model,
    choice: Choice,
    budget: Budget,
    catalogue: Catalogue,
    findings: Findings,
) -> tuple[Placement, ...]:
    """Place each instance."""
    count, gpu = budget.instances, budget.gpu
    if choice.experts == "kt":
        routed = expert_backend.resident_bytes(catalogue, choice.experts, model) or 0
        return (numa.experts(host, routed, model.architecture.expert_width, findings),)
    if choice.hybrid and gpu is not None:
        width = model.architecture.expert_width
        where = numa.pools(host, _experts(budget), width, len(host.gpu_bytes), findings)
        return (where,) * count
    resident = budget.host_required - host.reserve_bytes
    if gpu is not None:
        can_bind = choice.engine.numa_bind_flags
        return (numa.beside(host, gpu.gpus * count, resident, can_bind=can_bind),) * count
    if count > 1:
        return numa.one_each(host, count)
    return (numa.place(host, resident, findings),)


def _bound(host: hosts.Host, budget: Budget, places: tuple[Placement, ...]) -> Bound:
    """Say what of host memory is bound strictly, and to which nodes: pools, or whole engines."""
    if places[0].pools:
        return Bound(budget.host_required, places[0].pools, _experts(budget))
    strict = [node for where in places if where.strict for node in where.nodes]
    resident = budget.host_required - host.reserve_bytes
    return Bound(budget.host_required, tuple(strict), resident)


def _migrated(
    host: hosts.Host,
    settings: Settings,
    model: Model,
    choice: Choice,
    catalogue: Catalogue,
    findings: Findings,
) -> Settings:
    """Return the settings in the engine's own flags; as the choice was made with where it was."""
    if choice.on_gpus is not None and not choice.hybrid:
        findings.extend(choice.on_gpus.replaced)
        return choice.on_gpus.settings
    work = Workload(choice.engine, model, choice.weights_format)
    return selection.migrated(host, settings, catalogue, work, findings)


def _experts(budget: Budget) -> int:
    return sum(part.size_bytes for part in budget.parts if part.kind == "weights")


def _instance(
    host: hosts.Host,
    choice: Choice,
    budget: Budget,
    where: Placement,
    chosen: Mapping[str, Any],
    backend: Mapping[str, int],
    served: Served,
) -> dict[str, Any]:
    """Give one instance its line, its port and its GPUs, neighbours together."""
    size, index = budget.gpu.gpus if budget.gpu else 0, backend["index"]
    gpus = list(range(len(host.gpu_bytes))[index * size : (index + 1) * size])
    nodes = [where.gpu_nodes[gpu] for gpu in gpus] if where.gpu_nodes else []
    own = command.of_instance(chosen, where, nodes)
    return {
        "index": index,
        "unit": unit_names.serve(index),
        "argv": command.argv(choice, own, served, backend["port"]),
        "env": command.environment(choice, own, budget, where, gpus),
        "numactl": list(where.numactl),
        "numa_nodes": list(where.nodes),
        "cpus": where.cpus,
        "gpus": gpus,
        "gpu_nodes": nodes,
        "port": backend["port"],
    }


def _parallel(budget: Budget, chosen: Mapping[str, Any]) -> dict[str, Any]:
    gpu = budget.gpu
    return {
        "tensor": gpu.ranks if gpu else 1,
        "expert": bool(gpu and chosen.get(flag_names.VLLM.expert_parallel)),
        "decode_context": gpu.decode_context if gpu else 1,
        "pipeline": gpu.pipeline if gpu else 1,
        "data": gpu.data if gpu else 1,
    }


def _hybrid(choice: Choice, budget: Budget, where: Placement) -> dict[str, Any] | None:
    if not where.pools or budget.gpu is None:
        return None
    return {
        "method": (choice.engine.methods or {}).get(choice.weights_format),
        "threads": where.pool_threads,
        "pools": len(where.pools),
        "nodes": list(where.pools),
        "gpu_experts": budget.gpu.experts,
    }


def _engine(choice: Choice) -> dict[str, Any]:
    return {
        "name": choice.engine.name,
        "variant": choice.engine.variant,
        "version": choice.engine.version,
        "reason": choice.reason,
        "distribution": choice.engine.distribution,
        "module": choice.engine.module,
        "torch": choice.engine.torch,
        "cuda": choice.engine.cuda,
        "env_name": choice.env_name,
        "env_dir": selection.env_dir(choice),
        "provisioned": choice.provisioned,
        "python": choice.python.path,
        "python_version": choice.python.version,
        "lock": choice.lock,
        "locks": choice.locks,
    }


def _model(
    model: Model,
    weights: Weights,
    choice: Choice,
    budget: Budget,
    served: Served,
) -> dict[str, Any]:
    return {
        "name": model.name,
        "revision": weights.revision,
        "dir": weights.directory,
        "serve_dir": served.directory,
        "served_names": served.names,
        "random_weights": model.random_weights,
        "architecture": model.architecture.class_name,
        "context": budget.context,
        "context_max": model.context,
        "weights_format": choice.weights_format,
        "kv_dtype": budget.kv_dtype,
        "bytes": weights.size_bytes,
    }


def _weights(settings: Settings, weights: Weights, draft: dict[str, Any] | None) -> dict[str, Any]:
    keys = ("source", "manifest", "dir", "bytes")
    return {
        "draft": {key: draft[key] for key in keys} if draft else None,
        "source": weights.source,
        "manifest": dict(settings.manifest) if settings.manifest else None,
        "dir": weights.directory,
        "bytes": weights.size_bytes,
        "workers": settings.weights_workers,
        "token_file": paths.HUB_TOKEN if settings.hf_token_file else None,
        "hf_endpoint": settings.hf_endpoint,
        "ca_bundle": paths.CA_BUNDLE if settings.ca_bundle else None,
    }


def _warm(
    ram_disk: RamDisk,
    host: hosts.Host,
    weights: Weights,
    engine_bytes: int,
    converted: Converted | None,
) -> dict[str, Any]:
    """Read the files into the page cache where there is no RAM disk, but room for them.

    `engine_bytes`: what engine and system take once it serves; the cache gives way to that.
    """
    if ram_disk.enabled:
        return {"enabled": False, "reason": "the RAM disk holds the weights"}
    if converted is not None:
        return {"enabled": False, "reason": storage.CONVERTED}
    if weights.size_bytes > host.memory_bytes - host.reserve_bytes:
        return {"enabled": False, "reason": "the weights are larger than memory"}
    kept = max(0, min(weights.size_bytes, host.memory_bytes - engine_bytes))
    again = weights.size_bytes - kept
    restart = (
        f"a restart finds at most {human(kept)} there and reads {human(again)} from disk again"
        if again
        else "a restart finds them there"
    )
    return {
        "enabled": True,
        "reason": f"no RAM disk, which would hold {human(weights.size_bytes)} for good: the "
        f"files are read ahead into the page cache, which gives way to the engine; {restart}",
    }


def _memory_units(ram_disk: RamDisk, warm: Mapping[str, Any]) -> dict[str, Any]:
    """Name the service that fills memory, all units of that, and those of another plan."""
    service, wanted = None, []
    if ram_disk.enabled:
        service, wanted = unit_names.STAGE, [unit_names.RAM_MOUNT, unit_names.STAGE]
    elif warm["enabled"]:
        service, wanted = unit_names.WARM, [unit_names.WARM]
    every = (unit_names.STAGE, unit_names.RAM_MOUNT, unit_names.WARM)
    absent = [name for name in every if name not in wanted]
    return {"service": service, "units": wanted, "absent_units": absent}


def _proxy(host: hosts.Host, settings: Settings, backends: list[dict[str, int]]) -> dict[str, Any]:
    own = [settings.host, host.facts["host"].get("hostname"), settings.address]
    names = [str(name) for name in [*settings.tls_names, *own, "localhost", "127.0.0.1"] if name]
    return {
        "port": settings.port,
        "tls": {
            "mode": "files" if settings.tls_cert_file else "self-signed",
            "cert_file": settings.tls_cert_file,
            "key_file": settings.tls_key_file,
            "names": list(dict.fromkeys(names)),
        },
        "backends": backends,
        "allowed_networks": list(settings.allowed_networks),
        "timeouts": {},
    }


def _start_s(settings: Settings, weights: Weights) -> int:
    """Seconds within which the engine must answer; whole minutes where nobody named them."""
    if not settings.auto("start_timeout_s"):
        return int(settings.start_timeout_s)
    return -(-(_START_S + weights.size_bytes // _LOAD_BYTES_PER_S) // 60) * 60


def _judge_door(settings: Settings, findings: Findings) -> None:
    if not settings.allowed_networks:
        findings.add(
            "firewall.closed",
            observed="kimi_allowed_networks is empty",
            required="list the networks of the clients",
        )
