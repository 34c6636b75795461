"""Facts, wishes and the catalogue become the plan: every decision of the product, made here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.planner import command, engine, memory, placement, storage, system
from kimi_prov.planner import host as hosts
from kimi_prov.planner.findings import Findings
from kimi_prov.target import layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.loader import Catalogue, Model
    from kimi_prov.planner.wishes import Wishes

SCHEMA = "kimi-prov/plan/v1"
# Seconds before the engine answers: starting itself, then reading weights at this rate.
_START_S = 900
_LOAD_BYTES_PER_S = 250_000_000
_NOT_ESTIMATED = {"low": None, "expected": None, "high": None}


def make_plan(facts: Mapping[str, Any], wishes: Wishes, catalogue: Catalogue) -> dict[str, Any]:
    """Decide everything for one machine. Pure: the same input gives the same plan.

    Nothing that moves by itself (free memory, free disk, what is converged already) is in the
    plan, findings aside. Raises UserError for an unknown model or a source that is not named.
    """
    findings = Findings()
    host = hosts.read(facts)
    model = catalogue.model(wishes.model)
    system.judge(host, catalogue, findings)
    choice = engine.choose(host, wishes, catalogue, model, findings)
    driver = system.driver(host, choice.engine, findings)
    budget = memory.budget(host, wishes, model, choice.engine, choice.weights_format, findings)
    weights = storage.weights(wishes, model, choice.weights_format, findings)
    ram_disk = storage.ram_disk(host, wishes, weights, budget.host_required, findings)
    resident = budget.host_required - host.reserve_bytes
    where = placement.place(host, resident, findings)
    files_dir = weights.directory.replace(layout.MODELS, layout.RAM, 1)
    serve_dir = files_dir if ram_disk.enabled else weights.directory
    names = list(wishes.served_names) or [model.name]
    chosen = command.flags(wishes, model, choice, budget, findings)
    backends = [{"index": 0, "port": int(wishes.port) + 1}]
    system.judge_ports(host, [int(wishes.port), *[b["port"] for b in backends]], findings)
    gpus = list(range(budget.tensor_parallel)) if host.gpu_bytes else []
    plan = {
        "schema": SCHEMA,
        "engine": _engine(choice),
        "model": _model(model, weights, choice, budget, (serve_dir, names)),
        "weights": _weights(wishes, weights),
        "instances": [
            {
                "index": backend["index"],
                "argv": command.argv(choice, chosen, serve_dir, names, backend["port"]),
                "env": command.environment(choice, chosen, budget, where),
                "numactl": list(where.numactl),
                "numa_nodes": list(where.nodes),
                "cpus": where.cpus,
                "gpus": gpus,
                "port": backend["port"],
            }
            for backend in backends
        ],
        "memory": budget.document(host, ram_disk.size_bytes),
        "throughput": {
            "concurrency": int(wishes.concurrency),
            "decode_tok_s": dict(_NOT_ESTIMATED),
            "aggregate_tok_s": dict(_NOT_ESTIMATED),
            "prefill_tok_s": dict(_NOT_ESTIMATED),
            "load_s": dict(_NOT_ESTIMATED),
            "basis": "not estimated",
        },
        "ram_disk": {
            "enabled": ram_disk.enabled,
            "size_bytes": ram_disk.size_bytes,
            "reason": ram_disk.reason,
            "path": layout.RAM,
            "options": ram_disk.options,
            "workers": max(1, min(8, len(host.primary))),
            "files_dir": files_dir,
        },
        "warm": _warm(ram_disk, host, weights),
        "disk": storage.disk(host, weights, choice, findings),
        "tuning": system.tuning(host, on_cpu=not host.gpu_bytes),
        "proxy": _proxy(host, wishes, backends),
        "firewall": system.firewall(host, wishes),
        "driver": driver,
        "packages": system.packages(
            host, choice.python.path, compiles=command.compiles(choice, chosen)
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
        "paths": layout.paths(),
    }
    _judge_door(wishes, findings)
    return {**plan, "findings": findings.rows()}


def blockers(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the findings that forbid to go on."""
    return [row for row in plan["findings"] if row["severity"] == "blocker"]


def _engine(choice: engine.Choice) -> dict[str, Any]:
    return {
        "name": choice.engine.name,
        "variant": choice.engine.variant,
        "version": choice.engine.version,
        "reason": choice.reason,
        "distribution": choice.engine.distribution,
        "module": choice.engine.module,
        "env_name": choice.env_name,
        "env_dir": engine.env_dir(choice),
        "python": choice.python.path,
        "python_version": choice.python.version,
        "lock": choice.lock,
    }


def _model(
    model: Model,
    weights: storage.Weights,
    choice: engine.Choice,
    budget: memory.Budget,
    served: tuple[str, list[str]],
) -> dict[str, Any]:
    serve_dir, names = served
    return {
        "name": model.name,
        "revision": weights.revision,
        "dir": weights.directory,
        "serve_dir": serve_dir,
        "served_names": names,
        "random_weights": model.random_weights,
        "architecture": model.architecture.class_name,
        "context": budget.context,
        "weights_format": choice.weights_format,
        "bytes": weights.size_bytes,
    }


def _weights(wishes: Wishes, weights: storage.Weights) -> dict[str, Any]:
    return {
        "source": weights.source,
        "manifest": dict(wishes.manifest) if wishes.manifest else None,
        "dir": weights.directory,
        "bytes": weights.size_bytes,
        "workers": int(wishes.weights_workers),
        "token_file": layout.HUB_TOKEN if wishes.hf_token_file else None,
        "hf_endpoint": wishes.hf_endpoint,
        "ca_bundle": layout.CA_BUNDLE if wishes.ca_bundle else None,
    }


def _warm(ram_disk: storage.RamDisk, host: hosts.Host, weights: storage.Weights) -> dict[str, Any]:
    """Read the files into the page cache where there is no RAM disk, but room for them."""
    if ram_disk.enabled:
        return {"enabled": False, "reason": "the RAM disk holds the weights"}
    if weights.size_bytes > host.memory_bytes - host.reserve_bytes:
        return {"enabled": False, "reason": "the weights are larger than memory"}
    return {"enabled": True, "reason": "no RAM disk: reading the files ahead fills the page cache"}


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
