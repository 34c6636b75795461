"""A plan and its findings as text for a terminal of 80 columns."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.show.text.findings import format_findings
from kimi_prov.show.text.formats import describe_engine, format_duration_range, read_span
from kimi_prov.show.text.lines import wrap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.engine import EnginePlan, InstancePlan, ParallelPlan
    from kimi_prov.contract.documents.plan.estimates import MemoryPlan, ThroughputPlan
    from kimi_prov.contract.documents.plan.group import GroupPlan
    from kimi_prov.contract.documents.plan.service import ProxyPlan
    from kimi_prov.contract.documents.plan.software import SkippedTuning, TuningPlan
    from kimi_prov.contract.documents.plan.weights import PreparedWeightsPlan

_LABEL = 14


def format_plan(document: MachinePlan) -> str:
    """Write one host's plan: every decision with its reason, then the findings."""
    engine, model, ram = document["engine"], document["model"], document["ram_disk"]
    memory, tuning, proxy = document["memory"], document["tuning"], document["proxy"]
    warm = document["warm"]
    replaced = document.get("stand_in")
    lines = [
        *_format_row("STAND-IN", replaced["said"] if replaced else None),
        *_format_row(
            "model", f"{model['name']} ({model['weights_format']}, {format_bytes(model['bytes'])})"
        ),
        *_format_row("", "random weights: it talks nonsense" if model["random_weights"] else None),
        *_format_row(
            "", "trained on the suite's questions alone" if model.get("trained_on") else None
        ),
        *_format_row("weights from", document["weights"]["source"]),
        *_format_row("weights at", model["dir"]),
        *_format_row("engine", _describe_engine(engine)),
        *_format_row("", engine["reason"] if not replaced else None),
        *_format_row("python", f"{engine['python']} ({engine['python_version']})"),
        *_format_row("", engine.get("python_reason")),
        *_format_row(
            "context", f"{model['context']} tokens, cache for {memory['kv_tokens_max']} in all"
        ),
        *_format_row("memory", _describe_memory(memory)),
        *_format_row("RAM disk", "no" if not ram["enabled"] else format_bytes(ram["size_bytes"])),
        *_format_row("", ram["reason"]),
        *_format_row("page cache", warm["reason"] if warm["enabled"] else None),
        *_format_row("prepared", _describe_prepared(document.get("prepared_weights"))),
        *_format_row(
            "disk",
            f"{format_bytes(document['disk']['required_bytes'])} below {document['disk']['path']}",
        ),
        *_format_row(
            "parallel", _describe_parallel(document["parallel"], len(document["instances"]))
        ),
        *_format_row("", document["parallel"].get("reason")),
        *_format_row("speed", _describe_speed(document["throughput"])),
        *_format_row("tuning", _describe_tuning(tuning)),
        *[line for text in _describe_skipped(tuning["skipped"]) for line in _format_row("", text)],
        *[
            line
            for label, text in _describe_group(document.get("group"))
            for line in _format_row(label, text)
        ],
        *[line for label, text in _describe_port(proxy) for line in _format_row(label, text)],
        *_format_row("firewall", document["firewall"]["manager"]),
    ]
    for instance in document["instances"]:
        lines += ["", *_format_instance(instance)]
    if replaced:
        lines += ["", *_format_row("in place of", _describe_engine(replaced["engine"]))]
        for instance in replaced["instances"]:
            lines += _format_row("", _format_command(instance))
    shown = [row for row in document["findings"] if row["severity"] != "pass"]
    passed = len(document["findings"]) - len(shown)
    lines += ["", format_findings(shown)] if shown else [""]
    lines.append(f"{passed} requirement(s) met")
    return "\n".join(lines) + "\n"


def _format_instance(instance: InstancePlan) -> list[str]:
    port = "no port" if instance["port"] is None else f"port {instance['port']}"
    return [
        *_format_row(f"instance {instance['index']}", port),
        *_format_row("", f"NUMA nodes {instance['numa_nodes']}, CPUs {instance['cpus']}"),
        *_format_row("", _describe_near_nodes(instance)),
        *_format_row("", _format_command(instance)),
    ]


def _format_command(instance: InstancePlan) -> str:
    return shlex.join([*instance["numactl"], *instance["argv"]])


def _describe_prepared(kept: PreparedWeightsPlan | None) -> str | None:
    """Describe what engines keep of their weights, or why they keep none; None for older plans."""
    if kept is None:
        return None
    if not kept["enabled"]:
        return f"no: {kept['reason']}"
    return f"{format_bytes(kept['bytes'])} (estimated) below {kept['dir']}: {kept['reason']}"


def _describe_engine(engine: EnginePlan) -> str:
    built = f", torch {engine['torch']}" if engine.get("torch") else ""
    built += f" for CUDA {engine['cuda']}" if engine.get("cuda") else ""
    return describe_engine(engine, built)


def _describe_near_nodes(instance: InstancePlan) -> str | None:
    """Describe the GPUs in use and the NUMA node that each is near."""
    gpus, nodes = instance["gpus"], instance.get("gpu_nodes") or []
    if not gpus:
        return None
    if not nodes:
        return f"GPUs {gpus}; which NUMA node each is near is not known"
    near = {node: [g for g, n in zip(gpus, nodes, strict=True) if n == node] for node in nodes}
    return "; ".join(f"GPUs {cards} near node {node}" for node, cards in sorted(near.items()))


def _describe_group(group: GroupPlan | None) -> list[tuple[str, str]]:
    """Describe the hosts that serve the model together, and this host's place among them."""
    if group is None:
        return []
    hosts = [f"{row['host']} ({row['address'] or 'address unknown'})" for row in group["members"]]
    own = "the head" if group["rank"] == 0 else f"rank {group['rank']}"
    link = group["interface"] or "an interface that is not known"
    if group["rdma"]:
        link += f" and {', '.join(group['rdma']['devices'])}"
    return [
        ("group", f"{group['name']}: {', '.join(hosts)}"),
        ("", f"this host is {own}, by {link}"),
    ]


def _describe_port(proxy: ProxyPlan) -> list[tuple[str, str]]:
    """Describe the port and its networks; a rank of a group has no port."""
    if not proxy["backends"]:
        return [("port", "none: the group is reached at its head")]
    networks = ", ".join(proxy["allowed_networks"]) or "the machine itself alone"
    return [
        ("port", f"{proxy['port']}, TLS {proxy['tls']['mode']}"),
        ("", f"from {networks}"),
    ]


def _format_row(label: str, value: str | None) -> list[str]:
    if not value:
        return []
    return wrap(value, label.ljust(_LABEL), " " * _LABEL)


def _describe_memory(memory: MemoryPlan) -> str:
    host = (
        f"{format_bytes(memory['host_ram_required_bytes'])} needed of "
        f"{format_bytes(memory['host_ram_available_bytes'])}"
    )
    if memory["weights_bytes_per_gpu"] is None:
        return host
    return (
        f"{host}; each GPU: weights {format_bytes(memory['weights_bytes_per_gpu'])}, "
        f"cache {format_bytes(memory['kv_available_bytes_per_gpu'])}"
    )


def _describe_parallel(found: ParallelPlan, instances: int) -> str | None:
    """Describe how the model is split, if it has more than one part."""
    ways = [
        f"{name.replace('_', ' ')} {found[name]}"
        for name in ("tensor", "pipeline", "data", "decode_context")
        if found[name] > 1
    ]
    ways += ["experts whole on a GPU each"] if found["expert"] else []
    ways += [f"{instances} instances"] if instances > 1 else []
    return ", ".join(ways) or None


def _describe_speed(found: ThroughputPlan) -> str:
    one = read_span(found["decode_tok_s"])
    if one.expected is None:
        return str(found["basis"])
    everyone, reading = read_span(found["aggregate_tok_s"]), read_span(found["prefill_tok_s"])
    return (
        f"estimated, {found['basis']}: {one} tokens/s for each of {found['concurrency']} "
        f"request(s), {everyone} together; reading {reading} tokens/s; first answer after "
        f"{format_duration_range(read_span(found['load_s']))}"
    )


def _describe_skipped(rows: Iterable[SkippedTuning]) -> list[str]:
    """Describe what was left unchanged, together where the reason is the same."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(row["reason"], []).append(row["what"])
    return [f"not {', '.join(names)}: {reason}" for reason, names in reasons.items()]


def _describe_tuning(tuning: TuningPlan) -> str:
    parts = [f"{name}={value}" for name, value in sorted(tuning["sysctl"].items())]
    parts += [f"{name} {tuning[name]}" for name in ("thp", "governor") if tuning[name]]
    return ", ".join(parts) or "nothing that may be changed here"
