"""Facts, wishes and the catalogue become the plan: every decision of the product, made here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths
from kimi_prov.facts import gpu_names
from kimi_prov.facts import host as hosts
from kimi_prov.planner import driver as drivers
from kimi_prov.planner import remediation, rules, stand_in, system
from kimi_prov.planner.engine import (
    command,
    expert_backend,
    flag_migration,
    moe_tuning,
    selection,
    speculative,
)
from kimi_prov.planner.findings import Findings, human
from kimi_prov.planner.memory import architecture, cpu, numa
from kimi_prov.planner.memory import gpu as graphics
from kimi_prov.planner.rules.context import Case
from kimi_prov.planner.storage import conversion
from kimi_prov.planner.storage import weights as storage
from kimi_prov.planner.throughput import prediction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.loader import Catalogue, Model
    from kimi_prov.planner.settings.parsing import Wishes

SCHEMA = "kimi-prov/plan/v1"
# Seconds before the engine answers: starting itself, then reading weights at this rate.
_START_S = 900
_LOAD_BYTES_PER_S = 250_000_000
# Findings that leave a plan true and an `apply` impossible.
_INTERCEPTED = "host.gib"
_ONLY_TO_PLAN = frozenset({"engine.not_provisioned", storage.SOURCE_MISSING})


def make_plan(facts: Mapping[str, Any], wishes: Wishes, catalogue: Catalogue) -> dict[str, Any]:
    """Decide everything for one machine. Pure: the same input gives the same plan.

    Nothing that moves by itself (free memory, free disk, what is converged already) is in the
    plan, findings aside. Raises UserError for an unknown model.
    """
    real = _plan(facts, wishes, catalogue)
    if not wishes.engine_stand_in:
        return real
    instead = stand_in.wishes(wishes, real["model"]["served_names"])
    return stand_in.laid_over(real, _plan(stand_in.facts(facts), instead, catalogue))


def _plan(facts: Mapping[str, Any], wishes: Wishes, catalogue: Catalogue) -> dict[str, Any]:
    findings = Findings()
    host = hosts.read(gpu_names.recognised(facts, catalogue), catalogue)
    model = catalogue.model(wishes.model)
    system.judge(host, catalogue, findings)
    choice = selection.choose(host, wishes, catalogue, model, findings)
    wishes = _modern(host, wishes, model, choice, catalogue, findings)
    draft = speculative.document(wishes, catalogue, model, choice.engine, findings)
    driver = drivers.driver(host, wishes, choice.engine, catalogue, choice.weights_format, findings)
    budget = _budget(host, wishes, model, choice, catalogue, findings)
    cpu.judge(host, wishes, model, budget, findings)
    weights = storage.weights(wishes, model, choice.weights_format, findings)
    places = _places(host, model, choice, budget, catalogue, findings)
    where = places[0]
    bound = _bound(host, budget, places)
    proposed = command.flags(wishes, model, choice, budget, where, host.capability)
    proposed |= speculative.flags(draft)
    chosen = command.merged(proposed, wishes, findings)
    converted = conversion.wanted(wishes, model, choice, weights, chosen, findings)
    ram_disk = storage.ram_disk(host, wishes, weights, bound, findings, converted=converted)
    files_dir = weights.directory.replace(paths.MODELS, paths.RAM, 1)
    served = command.Served(
        files_dir if ram_disk.enabled else weights.directory,
        list(wishes.served_names) or [model.name],
        converted.directory if converted else None,
    )
    backends = [{"index": n, "port": int(wishes.port) + 1 + n} for n in range(budget.instances)]
    system.judge_ports(host, [int(wishes.port), *[b["port"] for b in backends]], findings)
    plan = {
        "schema": SCHEMA,
        "stand_in": None,
        "engine": _engine(choice),
        "model": _model(model, weights, choice, budget, served),
        "weights": {
            **_weights(wishes, weights, draft),
            "converted": conversion.fetched(converted, wishes),
        },
        "conversion": conversion.document(converted, choice, model, chosen),
        "instances": [
            _instance(host, choice, budget, where, chosen, backend, served)
            for backend, where in zip(backends, places, strict=True)
        ],
        "memory": budget.document(host, ram_disk.size_bytes),
        "parallel": _parallel(budget, chosen),
        "hybrid": _hybrid(choice, budget, where),
        "experts": expert_backend.document(choice.experts, where),
        "speculative": {key: draft[key] for key in ("name", "method", "tokens")} if draft else None,
        "throughput": prediction.document(
            host, wishes, model, choice, budget, where, in_memory=ram_disk.enabled
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
        },
        "warm": _warm(ram_disk, host, weights, bound.total, converted),
        "disk": storage.disk(
            host,
            weights,
            choice,
            findings,
            draft_bytes=draft["bytes"] if draft else 0,
            converted=converted,
        ),
        "tuning": system.tuning(host, on_cpu=not host.gpu_bytes),
        "proxy": _proxy(host, wishes, backends),
        "firewall": system.firewall(host, wishes),
        "driver": driver,
        "nccl": {"guard": bool(host.gpu_bytes) and not host.amd},
        "packages": system.packages(
            host,
            choice.python.path,
            compiles=command.compiles(choice, chosen),
            drives=driver["repository"] is not None,
        ),
        "site": {
            "apt_mirror": wishes.apt_mirror,
            "pip_index_url": wishes.pip_index_url,
            "pip_extra_index_urls": list(wishes.pip_extra_index_urls),
            "pip_find_links": wishes.pip_find_links,
            "torch_index_url": wishes.torch_index_url,
            "ca_bundle": wishes.ca_bundle,
        },
        "control": {
            "api_keys_file": wishes.api_keys_file,
            "hf_token_file": wishes.hf_token_file,
        },
        "timeouts": {"start_s": _start_s(wishes, weights)},
        "paths": paths.paths(),
    }
    _judge_door(wishes, findings)
    case = Case(
        host, wishes, catalogue, model, choice, budget, where, bound, proposed, chosen, plan
    )
    findings.extend(rules.judge(case))
    return {**plan, "findings": remediation.priced(findings.rows(), case)}


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
        if row["id"] in _ONLY_TO_PLAN and row["severity"] != "blocker"
    ]
    mended = {_INTERCEPTED, *(drivers.MENDED if plan["driver"]["action"] != "none" else ())}
    return [row for row in [*blockers(plan), *wanting] if row["id"] not in mended]


def _budget(
    host: hosts.Host,
    wishes: Wishes,
    model: Model,
    choice: selection.Choice,
    catalogue: Catalogue,
    findings: Findings,
) -> cpu.Budget:
    work = (choice.engine, choice.weights_format)
    if not host.gpu_bytes or choice.engine.variant == "cpu":
        routed = expert_backend.resident_bytes(catalogue, choice.experts, model)
        resident = cpu.cpu_resident_bytes(model, work[1], routed)
        checkpoint = architecture.checkpoint_bytes(model.architecture, work[1])
        slices = expert_backend.slices(host, catalogue, choice.experts, model)
        least = resident + choice.engine.overhead_bytes + cpu.GIB
        if choice.experts == "kt":
            count = expert_backend.instances(wishes, findings)
        else:
            count = numa.copies(host, wishes, least, findings)
        sizes = (resident, checkpoint)
        return cpu.on_cpu(host, wishes, model, choice.engine, sizes, slices, count)
    if choice.hybrid:
        return graphics.hybrid(host, wishes, model, catalogue, work)
    return graphics.on_gpus(host, wishes, model, catalogue, work)


def _places(
    host: hosts.Host,
    model: Model,
    choice: selection.Choice,
    budget: cpu.Budget,
    catalogue: Catalogue,
    findings: Findings,
) -> tuple[numa.Placement, ...]:
    """Place each instance."""
    count, card = budget.instances, budget.graphics
    if choice.experts == "kt":
        routed = expert_backend.resident_bytes(catalogue, choice.experts, model) or 0
        return (numa.experts(host, routed, model.architecture.expert_width, findings),)
    if choice.hybrid and card is not None:
        width = model.architecture.expert_width
        where = numa.pools(host, _experts(budget), width, len(host.gpu_bytes), findings)
        return (where,) * count
    resident = budget.host_required - host.reserve_bytes
    if card is not None:
        can_bind = choice.engine.numa_bind_flags
        return (numa.beside(host, card.gpus * count, resident, can_bind=can_bind),) * count
    if count > 1:
        return numa.one_each(host, count)
    return (numa.place(host, resident, findings),)


def _bound(
    host: hosts.Host, budget: cpu.Budget, places: tuple[numa.Placement, ...]
) -> storage.Bound:
    """Say what of host memory is bound strictly, and to which nodes: pools, or whole engines."""
    if places[0].pools:
        return storage.Bound(budget.host_required, places[0].pools, _experts(budget))
    strict = [node for where in places if where.strict for node in where.nodes]
    resident = budget.host_required - host.reserve_bytes
    return storage.Bound(budget.host_required, tuple(strict), resident)


def _modern(
    host: hosts.Host,
    wishes: Wishes,
    model: Model,
    choice: selection.Choice,
    catalogue: Catalogue,
    findings: Findings,
) -> Wishes:
    ranks = graphics.ranks(host, model, catalogue, choice.engine, wishes) if host.gpu_bytes else 1
    about = (model, choice.weights_format, ranks, host.capability)
    return flag_migration.modern(wishes, choice.engine, catalogue, about, findings)


def _experts(budget: cpu.Budget) -> int:
    return sum(part.size_bytes for part in budget.parts if part.kind == "weights")


def _instance(
    host: hosts.Host,
    choice: selection.Choice,
    budget: cpu.Budget,
    where: numa.Placement,
    chosen: Mapping[str, Any],
    backend: Mapping[str, int],
    served: command.Served,
) -> dict[str, Any]:
    """Give one instance its line, its port and its GPUs, neighbours together."""
    size, index = budget.graphics.gpus if budget.graphics else 0, backend["index"]
    gpus = list(range(len(host.gpu_bytes))[index * size : (index + 1) * size])
    nodes = [where.gpu_nodes[gpu] for gpu in gpus] if where.gpu_nodes else []
    own = command.of_instance(chosen, where, nodes)
    return {
        "index": index,
        "argv": command.argv(choice, own, served, backend["port"]),
        "env": command.environment(choice, own, budget, where, gpus),
        "numactl": list(where.numactl),
        "numa_nodes": list(where.nodes),
        "cpus": where.cpus,
        "gpus": gpus,
        "gpu_nodes": nodes,
        "port": backend["port"],
    }


def _parallel(budget: cpu.Budget, chosen: Mapping[str, Any]) -> dict[str, Any]:
    card = budget.graphics
    return {
        "tensor": card.ranks if card else 1,
        "expert": bool(card and chosen.get("enable-expert-parallel")),
        "decode_context": card.decode_context if card else 1,
        "pipeline": card.pipeline if card else 1,
        "data": card.data if card else 1,
    }


def _hybrid(
    choice: selection.Choice, budget: cpu.Budget, where: numa.Placement
) -> dict[str, Any] | None:
    if not where.pools or budget.graphics is None:
        return None
    return {
        "method": (choice.engine.methods or {}).get(choice.weights_format),
        "threads": where.pool_threads,
        "pools": len(where.pools),
        "nodes": list(where.pools),
        "gpu_experts": budget.graphics.experts,
    }


def _engine(choice: selection.Choice) -> dict[str, Any]:
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
    weights: storage.Weights,
    choice: selection.Choice,
    budget: cpu.Budget,
    served: command.Served,
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


def _weights(
    wishes: Wishes, weights: storage.Weights, draft: dict[str, Any] | None
) -> dict[str, Any]:
    keys = ("source", "manifest", "dir", "bytes")
    return {
        "draft": {key: draft[key] for key in keys} if draft else None,
        "source": weights.source,
        "manifest": dict(wishes.manifest) if wishes.manifest else None,
        "dir": weights.directory,
        "bytes": weights.size_bytes,
        "workers": int(wishes.weights_workers),
        "token_file": paths.HUB_TOKEN if wishes.hf_token_file else None,
        "hf_endpoint": wishes.hf_endpoint,
        "ca_bundle": paths.CA_BUNDLE if wishes.ca_bundle else None,
    }


def _warm(
    ram_disk: storage.RamDisk,
    host: hosts.Host,
    weights: storage.Weights,
    engine_bytes: int,
    converted: conversion.Converted | None,
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


def _proxy(host: hosts.Host, wishes: Wishes, backends: list[dict[str, int]]) -> dict[str, Any]:
    own = [wishes.host, host.facts["host"].get("hostname"), wishes.address]
    names = [str(name) for name in [*wishes.tls_names, *own, "localhost", "127.0.0.1"] if name]
    return {
        "port": int(wishes.port),
        "tls": {
            "mode": "files" if wishes.tls_cert_file else "self-signed",
            "cert_file": wishes.tls_cert_file,
            "key_file": wishes.tls_key_file,
            "names": list(dict.fromkeys(names)),
        },
        "backends": backends,
        "allowed_networks": list(wishes.allowed_networks),
        "timeouts": {},
    }


def _start_s(wishes: Wishes, weights: storage.Weights) -> int:
    """Seconds within which the engine must answer; whole minutes where nobody named them."""
    if not wishes.auto("start_timeout_s"):
        return int(wishes.start_timeout_s)
    return -(-(_START_S + weights.size_bytes // _LOAD_BYTES_PER_S) // 60) * 60


def _judge_door(wishes: Wishes, findings: Findings) -> None:
    if not wishes.allowed_networks:
        findings.info(
            "firewall.closed",
            "Nobody but the machine itself may reach the port",
            observed="kimi_allowed_networks is empty",
            required="list the networks of the clients",
            source="an open port to everybody is never a default",
        )
