"""Every engine's command line and environment: the plan's flags, with the inventory's over them.

Decides: the command line of an instance, with `kimi_engine_args` over the flags of the plan.
Applied by: roles/serve.
Held by: tests/unit/planner/selection/test_command.py, tests/unit/planner/test_inventories.py,
  tests/engines/test_parsers.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths
from kimi_prov.planner.engine import sglang, vllm
from kimi_prov.planner.selection import engine
from kimi_prov.planner.settings.flag_names import KT, parse_int, parse_kv_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.models import Model
    from kimi_prov.contract.documents.plan.engine import InstancePlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import (
        Budget,
        EngineChoice,
        InstanceSlot,
        Placement,
        ServedModel,
    )
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.flag_names import FlagNames
    from kimi_prov.planner.settings.parsing import Settings

# The proxy, the firewall and the key depend on these flags.
_RESERVED = {
    "api-key": "kimi_api_keys_file",
    "host": "kimi_allowed_networks",
    "model": "kimi_weights_source",
    "port": "kimi_port",
    "root-path": "kimi_port",
    "served-model-name": "kimi_served_names",
    KT.weights: "kimi_weights_source",
    "headless": "kimi_hosts_per_model",
    "master-addr": "kimi_group_address",
    "master-port": "kimi_group_port",
    "nnodes": "kimi_hosts_per_model",
    "node-rank": "kimi_hosts_per_model",
    "ssl-certfile": "kimi_tls_cert_file",
    "ssl-keyfile": "kimi_tls_key_file",
    "uds": "kimi_port",
}


def make_flags(
    settings: Settings,
    model: Model,
    choice: EngineChoice,
    budget: Budget,
    placement: Placement,
    capability: str | None = None,
) -> dict[str, Any]:
    """Return the flags that the plan chooses, without those of one instance.

    `capability` is the GPUs' CUDA compute capability, such as "9.0".
    """
    if choice.hybrid:
        return sglang.make_flags(settings, model, choice, budget, placement)
    return vllm.make_flags(settings, model, choice, budget, placement, capability)


def merge_flags(
    chosen: dict[str, Any], settings: Settings, names: FlagNames, findings: Findings
) -> dict[str, Any]:
    """Merge the inventory's flags into the plan's; each difference is a finding.

    `names`: the engine's flags with which memory is counted.
    """
    requested = dict(settings.engine_args)
    for flag in sorted(set(requested) & set(_RESERVED)):
        findings.add(
            "engine_args.reserved",
            names={"flag": flag},
            observed=f"kimi_engine_args: {flag}",
            required=f"the variable {_RESERVED[flag]}",
            fix=f"remove {flag} from kimi_engine_args and use {_RESERVED[flag]}",
        )
        del requested[flag]
    against = _find_contradicted(settings, names)
    for flag, value in sorted(requested.items()):
        differs = flag in chosen and value not in (chosen[flag], str(chosen[flag]))
        if flag in against:
            variable, other = against[flag]
            findings.add(
                "engine_args.override",
                severity="warning",
                names={"flag": flag, "variable": variable},
                observed=f"kimi_engine_args: {flag}: {json.dumps(value)}; {variable}: {other}",
                required="one value: kimi_engine_args wins, and memory is counted with it",
                fix=f"remove {flag} from kimi_engine_args, or {variable}",
            )
        elif differs or (flag in chosen and flag in names.sizing):
            findings.add(
                "engine_args.override",
                severity="info",
                names={"flag": flag},
                observed=f"kimi_engine_args: {flag}: {json.dumps(value)}",
                required=f"the plan chose {json.dumps(chosen[flag])}"
                if differs
                else "memory is counted with it",
            )
    return {flag: value for flag, value in {**chosen, **requested}.items() if value is not None}


def _find_contradicted(settings: Settings, names: FlagNames) -> dict[str, tuple[str, object]]:
    """Return the flags whose value contradicts a set variable, with that variable."""
    contradicted: dict[str, tuple[str, object]] = {}
    args = settings.engine_args
    context, dtype = parse_int(args.get(names.context)), parse_kv_dtype(args.get(names.kv_dtype))
    if not settings.auto("context") and context not in (None, settings.context):
        contradicted[names.context] = ("kimi_context", settings.context)
    if not settings.auto("kv_dtype") and dtype not in (None, settings.kv_dtype):
        contradicted[names.kv_dtype] = ("kimi_kv_dtype", settings.kv_dtype)
    return contradicted


def make_instance(
    host: Host,
    choice: EngineChoice,
    budget: Budget,
    where: Placement,
    chosen: Mapping[str, Any],
    slot: InstanceSlot,
    served: ServedModel,
) -> InstancePlan:
    """Return one of the plan's `instances`: its command line, port and adjacent GPUs."""
    index = slot.index
    size = budget.gpu.gpus if budget.gpu else 0
    gpus = list(range(len(host.gpu_bytes))[index * size : (index + 1) * size])
    nodes = [where.gpu_nodes[gpu] for gpu in gpus] if where.gpu_nodes else []
    own = dict(chosen) if choice.hybrid else vllm.make_instance_flags(chosen, where, nodes)
    own |= slot.flags
    environment = _make_environment(choice, own, budget, where, gpus, host.capability)
    environment |= dict(slot.environment)
    return {
        "index": index,
        "unit": slot.unit,
        "argv": _make_argv(choice, own, served, slot.port),
        "env": dict(sorted(environment.items())),
        "numactl": list(where.numactl),
        "numa_nodes": list(where.nodes),
        "cpus": where.cpus,
        "gpus": gpus,
        "gpu_nodes": nodes,
        "port": slot.port,
    }


def _make_argv(
    choice: EngineChoice, chosen: dict[str, Any], served: ServedModel, port: int | None
) -> list[str]:
    """Return an instance's whole command line; each element is one argument."""
    serve_dir, names = served.directory, served.names
    # Not through the link: python imports by the path of its call.
    line = [f"{engine.make_env_dir(choice)}/bin/python", "-m", choice.engine.module]
    line += ["--model", serve_dir, "--served-model-name"]
    # sglang accepts one name.
    line += names[:1] if choice.hybrid else names
    if port is not None:
        line += ["--host", "127.0.0.1", "--port", str(port)]
    if choice.hybrid:
        line += [f"--{KT.weights}", served.experts or serve_dir]
    for flag, value in chosen.items():
        line += _format_arguments(flag, value)
    return line


def _format_arguments(flag: str, value: object) -> list[str]:
    if value is True:
        return [f"--{flag}"]
    if value is False:
        return [f"--no-{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *[str(item) for item in value]]
    return [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]


def is_compiling(choice: EngineChoice, chosen: dict[str, Any]) -> bool:
    """Whether the engine compiles on the machine when it starts.

    On GPUs it always does: Triton compiles loaders of its kernels by a C compiler with Python's
    headers (triton/runtime/build.py), and KTransformers compiles its own kernels by nvcc.
    """
    return choice.engine.variant != "cpu" or not chosen.get(vllm.EAGER)


def _make_environment(
    choice: EngineChoice,
    chosen: dict[str, Any],
    budget: Budget,
    placement: Placement,
    gpus: list[int],
    capability: str | None,
) -> dict[str, str]:
    """Return an instance's environment: offline, without telemetry, caches writable by `kimi`.

    `gpus` are the instance's own; a single instance sees all GPUs.
    """
    environment = {
        "DO_NOT_TRACK": "1",
        "HF_HOME": f"{paths.CACHE}/huggingface",
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": f"{paths.CACHE}/inductor",
        "XDG_CACHE_HOME": paths.CACHE,
    }
    env_dir = engine.make_env_dir(choice)
    if choice.hybrid:
        own = sglang.make_environment(env_dir)
    else:
        own = vllm.make_environment(choice, chosen, budget, placement, gpus, env_dir, capability)
    return {**environment, **own}
