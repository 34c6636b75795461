"""The acceptance checks of a served model, as one document of a host.

The checks through the port are `kimi_prov.on_host.endpoint.checks`. This module judges what the
machine reports about itself and what other hosts tried.

Decides: what `verify` checks.
Applied by: playbooks/verify.yml.
Held by: tests/unit/acceptance/test_suite.py.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import groups
from kimi_prov.contract.cpu_lists import parse_list
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.acceptance.catalogue import BASIC, MEANINGLESS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import RuntimeAnswer
    from kimi_prov.contract.documents.plan import MachinePlan, Plan
    from kimi_prov.contract.documents.plan.engine import InstancePlan

Check = dict[str, Any]
# The checks of the machine itself, and of the network of a group.
OF_MACHINE = (
    *("environment", "placement", "engine-on-loopback"),
    *("outsider-refused", "certificate", "network"),
)
# Those of them that a gateway, which has no engine, has to pass.
OF_GATEWAY = ("outsider-refused", "certificate")
STRAY_SHARE = 0.05
_RECORDED = "nvidia-smi:"

STAND_INS = {
    "nspawn": "the host is a systemd-nspawn container on the control machine's kernel",
    "qemu": "the host is a machine emulated in software (qemu)",
}


def list_stand_ins(plan: Plan, variables: Mapping[str, Any]) -> list[str]:
    """Name what is not the real thing by a plan, as `name_stand_ins` does."""
    model, replaced = plan.get("model"), plan.get("stand_in")
    return name_stand_ins(
        replaced["said"] if replaced else None,
        random_weights=bool(model and model.get("random_weights")),
        trained=bool(model and model.get("trained_on")),
        variables=variables,
    )


def name_stand_ins(
    stand_in: str | None, *, random_weights: bool, trained: bool, variables: Mapping[str, Any]
) -> list[str]:
    """Name what is not the real thing in a result; empty for a real host and real weights.

    `stand_in`: by what the engine is replaced; `trained`: on the suite's own questions.
    `variables`: the host's; `lab_kind` and `lab_files` in them describe a lab host.
    """
    kind = variables.get("lab_kind")
    names = [STAND_INS[kind]] if kind in STAND_INS else []
    sources = [str(file.get("src", "")) for file in variables.get("lab_files") or ()]
    recordings = [text.rpartition("/")[2] for text in sources if text.startswith(_RECORDED)]
    names += [f"nvidia-smi answers from the recording {name}" for name in recordings]
    if stand_in:
        names.append(stand_in)
    if random_weights:
        names.append("the model has random weights: its answers have form and no meaning")
    if trained:
        names.append(
            "the model was trained on the suite's own questions: its answers were learnt by heart, "
            "and say nothing of real weights"
        )
    return names


def choose_vantage(
    *, local: bool, address: str, source: str | None, networks: list[str]
) -> tuple[str, str]:
    """Return from where to reach the port, `control` or `machine`, and why.

    `source` is the control machine's own address on the way to the host, None without a route.
    """
    if local:
        return "control", "the control machine is the served machine"
    if _is_loopback(address):
        return "machine", f"the host is reached through a forwarded port of {address}"
    if source is None:
        return "machine", f"the control machine has no route to {address}"
    if source != address and not _is_listed(source, networks):
        return "machine", f"the control machine ({source}) is in no allowed network"
    return "control", f"the control machine ({source}) is in an allowed network"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _is_listed(address: str, networks: list[str]) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return any(ip in ipaddress.ip_network(network, strict=False) for network in networks)


def check_placement(plan: MachinePlan, seen: RuntimeAnswer) -> Check:
    """Judge whether the engine's processes and their memory are where the plan says."""
    reports = {item["index"]: item for item in seen["instances"]}
    wrong: list[str] = []
    report: list[str] = []
    for instance in plan["instances"]:
        row = reports.get(instance["index"], {})
        processes = row.get("processes", [])
        if not processes:
            failure = f": {row['failure']}" if row.get("failure") else ""
            wrong.append(f"instance {instance['index']} does not run{failure}")
            continue
        faults = [fault for process in processes for fault in _find_cpu_faults(instance, process)]
        memory, fault = _check_memory(instance, processes)
        threads, held = _check_held_cores(plan, instance, processes)
        huge, small = _check_huge_pages(plan, processes)
        wrong += [
            f"instance {instance['index']}: {text}" for text in [*faults, *fault, *held, *small]
        ]
        report.append(
            f"instance {instance['index']}: {len(processes)} processes within CPUs "
            f"{instance['cpus'] or 'any'}, {threads}, {memory}, {huge}"
        )
    return _make_check("placement", "; ".join(wrong), "; ".join(report))


def _parse_cpus(text: str) -> set[int]:
    return set(parse_list(text))


def _find_cpu_faults(instance: InstancePlan, process: dict[str, Any]) -> list[str]:
    if not instance["cpus"]:
        return []
    allowed = _parse_cpus(instance["cpus"])
    masks = [process["cpus"], *process.get("threads", {})]
    outside = sorted({mask for mask in masks if _parse_cpus(mask) - allowed})
    if not outside:
        return []
    who = f"{process['name']} ({process['pid']})"
    return [f"{who} may use CPUs {', '.join(outside)}, the plan says {instance['cpus']}"]


def _check_memory(instance: InstancePlan, processes: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Return where the memory is, and the faults."""
    total: dict[str, int] = {}
    policies: set[str] = set()
    for process in processes:
        policies |= set(process["policies"])
        for node, size in process["bytes_by_node"].items():
            total[node] = total.get(node, 0) + size
    if not policies:
        return "the kernel reports no memory policy", []
    expected = next(
        (word for word in instance["numactl"] if word.startswith(("--membind", "--interleave"))), ""
    )
    kind = {"--membind": "bind", "--interleave": "interleave"}.get(expected.partition("=")[0], "")
    shown = ", ".join(f"node {node} {format_bytes(size)}" for node, size in sorted(total.items()))
    text = f"memory on {shown or 'no node'}"
    if not kind:
        return f"{text}, no policy planned", []
    faults = []
    if not any(policy.startswith(kind) for policy in policies):
        faults.append(f"no memory is under the planned policy {expected[2:]}")
    nodes = {str(node) for node in instance["numa_nodes"]}
    stray = sum(size for node, size in total.items() if node not in nodes)
    if stray > STRAY_SHARE * sum(total.values()):
        faults.append(f"{format_bytes(stray)} lie outside node {', '.join(sorted(nodes))}")
    return f"{text}, policy {expected[2:]}", faults


def _check_held_cores(
    plan: MachinePlan, instance: InstancePlan, processes: list[dict[str, Any]]
) -> tuple[str, list[str]]:
    """Return the number of cores with bound threads, and faults: each worker has its own core."""
    masks = [mask for process in processes for mask in process["threads"]]
    count = sum(n for process in processes for n in process["threads"].values())
    cores = {cpu for cpus in map(_parse_cpus, masks) if len(cpus) == 1 for cpu in cpus}
    hybrid = plan.get("hybrid")
    bound = _parse_cpus(instance.get("env", {}).get("VLLM_CPU_OMP_THREADS_BIND", ""))
    expected = hybrid["threads"] if hybrid else len(bound)
    text = f"{count} threads, {len(cores)} cores with one held to them"
    if not expected:
        return text, []
    missing = bool(bound - cores) or len(cores) < expected
    fault = [f"threads are held to {len(cores)} cores, the plan has {expected} for kernels"]
    return f"{text} ({expected} planned for kernels)", fault if missing else []


def _check_huge_pages(plan: MachinePlan, processes: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Return how much is in huge pages, and a fault if none is and the plan requests them."""
    sizes = [process["huge_bytes"] for process in processes if process["huge_bytes"] is not None]
    if not sizes:
        return "the kernel reports no huge pages", []
    text = f"{format_bytes(sum(sizes))} in huge pages"
    if plan["tuning"]["thp"] != "always":
        return f"{text} (none planned)", []
    return text, [] if sum(sizes) else ["nothing lies in huge pages, the plan asks for them always"]


def check_loopback(seen: RuntimeAnswer) -> Check:
    """Judge whether the engines listen only on the loopback."""
    wrong = []
    for port, addresses in sorted(seen["listening"].items()):
        if not addresses:
            wrong.append(f"nothing listens on port {port}")
        wrong += [
            f"port {port} listens on {address}"
            for address in addresses
            if address not in ("127.0.0.1", "::1")
        ]
    ports = ", ".join(sorted(seen["listening"]))
    return _make_check("engine-on-loopback", "; ".join(wrong), f"port {ports} on 127.0.0.1 alone")


def read_attempts(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read each outsider's attempt from the results of a loop; a host that is down has none."""
    return [
        result.get("found")
        or {
            "name": str(result.get("item", "?")),
            "address": "",
            "outcome": "untried",
            "detail": str(result.get("msg") or "it did not answer").splitlines()[0],
        }
        for result in results
    ]


def check_outsiders(tries: list[dict[str, Any]]) -> Check:
    """Judge attempts of hosts that are not allowed: {"name", "address", "outcome", "seconds"}."""
    usable = [attempt for attempt in tries if attempt["outcome"] != "untried"]
    seconds = round(sum(attempt.get("seconds", 0.0) for attempt in tries), 3)
    if not usable:
        reasons = "; ".join(f"{attempt['name']}: {attempt.get('detail', '')}" for attempt in tries)
        check = _make_check("outsider-refused", "", "")
        check |= {
            "status": "skip",
            "detail": reasons or "no host in the group kimi_outsiders to try it from",
        }
        return check
    wrong = [
        f"{attempt['name']} reached {attempt['address']}"
        for attempt in usable
        if attempt["outcome"] == "connected"
    ]
    report = [
        f"{attempt['name']} -> {attempt['address']}: {attempt['outcome']}" for attempt in usable
    ]
    return {
        **_make_check("outsider-refused", "; ".join(wrong), "; ".join(report)),
        "seconds": seconds,
    }


def check_certificate(seen: RuntimeAnswer) -> Check:
    """Judge whether the certificate needs a person, weeks before clients refuse it."""
    status = seen.get("certificate_standing")
    if not status:
        skipped = "the program on the machine is of an earlier version: run `kimi-prov apply`"
        return {**_make_check("certificate", "", skipped), "status": "skip"}
    summary = f"{status['mode']}: {status['detail']}"
    wrong = f"{summary}; {status['fix']}" if status["state"] != "ok" else ""
    return _make_check("certificate", wrong, summary)


def check_environment(seen: RuntimeAnswer) -> Check:
    """Judge whether the engine could start again: it runs on what it has opened already."""
    if "environment" not in seen:
        skipped = "the program on the machine is of an earlier version: run `kimi-prov apply`"
        return {**_make_check("environment", "", skipped), "status": "skip"}
    fault = seen["environment"]
    wrong = f"the engine's environment is broken: {fault}; `kimi-prov apply` makes it again"
    return _make_check("environment", wrong if fault else "", "interpreter and packages are whole")


def make_rank_document(
    plan: MachinePlan, seen: RuntimeAnswer, network: Check, stand_ins: list[str]
) -> dict[str, Any]:
    """Return the verify document of a group's host that is not its head: no client asks it."""
    group = groups.get_group(plan)
    head = group["members"][0]["host"]
    return make_document(
        endpoint="",
        seen_from="none",
        reason=f"rank {group['rank']} of group {group['name']} has no port for clients: they reach "
        f"{head}",
        checks=[check_units(seen), check_environment(seen), check_placement(plan, seen), network],
        stand_ins=stand_ins,
    )


def check_units(seen: RuntimeAnswer) -> Check:
    """Judge whether the unit of each instance runs."""
    states = [item["unit"].get("state") or "not there" for item in seen["instances"]]
    wrong = ", ".join(state for state in states if state != "active")
    return _make_check(
        "unit", wrong and f"the engine's unit is {wrong}", "the engine's unit is active"
    )


def _make_check(name: str, wrong: str, right: str) -> Check:
    status = "fail" if wrong else "ok"
    return {"name": name, "status": status, "detail": wrong or right, "seconds": 0.0}


def list_unproven(checks: list[Check], stand_ins: list[str]) -> list[str]:
    """List what a full suite has not proven, because only the model's real weights can."""
    meaningless = [check["name"] for check in checks if check["detail"] == MEANINGLESS]
    names = []
    if meaningless:
        listed = ", ".join(meaningless)
        names.append(f"not run, since only weights that were trained can prove it: {listed}")
    if stand_ins:
        names.append(
            "what passed holds for what stands in (named below); how the model's real weights "
            "answer, and how well, only they can prove"
        )
    return names


def make_document(
    *,
    endpoint: str,
    seen_from: str,
    reason: str,
    checks: list[Check],
    stand_ins: list[str],
    suite: str = BASIC,
) -> dict[str, Any]:
    """Return one host's verify document. A check that did not run is neither passed nor failed."""
    statuses = {check["status"] for check in checks}
    return {
        "ok": "ok" in statuses and "fail" not in statuses,
        "endpoint": endpoint,
        "vantage": seen_from,
        "vantage_reason": reason,
        "suite": suite,
        "checks": checks,
        "unproven": list_unproven(checks, stand_ins) if suite != BASIC else [],
        "stand_ins": stand_ins,
    }
