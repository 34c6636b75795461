"""The placement of a running engine: its CPUs, the nodes of its memory, its ports."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import certificate, stop_state
from kimi_prov.on_host.system import environments, plans, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_text
from kimi_prov.on_host.system.local_secrets import Secrets
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from kimi_prov.contract.documents.answers import RuntimeAnswer
    from kimi_prov.contract.documents.plan import MachinePlan

_NODE_PAGES = re.compile(r"\bN(\d+)=(\d+)")
_HUGE_PAGES = re.compile(r"^(?:AnonHugePages|Private_Hugetlb|Shared_Hugetlb):\s+(\d+) kB", re.M)
# Pages of files are on the node of the process that read them first: engines share libraries.
_FILE_MAPPING = re.compile(r" file=(?!/dev/shm/|/memfd:)")
_PAGE_SIZE = re.compile(r"kernelpagesize_kB=(\d+)")


def parse_numa_maps(text: str) -> dict[str, Any]:
    """Sum a process's numa_maps: bytes on each node, and how often each memory policy occurs.

    Bytes are those of its own and of shared memory; pages of files are left out.
    """
    nodes: dict[str, int] = {}
    policies: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2:
            continue
        policies[words[1]] = policies.get(words[1], 0) + 1
        if _FILE_MAPPING.search(line):
            continue
        size = _PAGE_SIZE.search(line)
        for node, pages in _NODE_PAGES.findall(line):
            kib = int(size.group(1)) if size else 4
            nodes[node] = nodes.get(node, 0) + int(pages) * kib * 1024
    return {"bytes_by_node": nodes, "policies": policies}


def parse_status(text: str) -> dict[str, Any]:
    """Return the lines of /proc/PID/status about the CPUs, nodes and size of a process."""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    resident = fields.get("VmRSS", "0 kB").split()
    return {
        "name": fields.get("Name", "").strip(),
        "cpus": fields.get("Cpus_allowed_list", "").strip(),
        "mems": fields.get("Mems_allowed_list", "").strip(),
        "resident_bytes": int(resident[0]) * 1024 if resident else 0,
    }


def list_processes(
    cgroup: str, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> list[dict[str, Any]]:
    """Return the processes of a unit, biggest first, with their placement."""
    if not cgroup:
        return []
    listed = read_text(groups / cgroup.lstrip("/") / "cgroup.procs").split()
    found = []
    for pid in listed:
        try:
            status = parse_status((proc / pid / "status").read_text())
            maps = read_text(proc / pid / "numa_maps")
            more = {
                "threads": _count_threads(proc / pid),
                "huge_bytes": _count_huge_bytes(proc / pid),
            }
        except OSError:
            continue  # It ended meanwhile.
        found.append({"pid": int(pid), **status, **parse_numa_maps(maps), **more})
    return sorted(found, key=lambda process: -process["resident_bytes"])


def _count_huge_bytes(directory: Path) -> int | None:
    """Return the bytes of a process in huge pages; None where the kernel has no figure."""
    text = read_text(directory / "smaps_rollup")
    return sum(int(kib) * 1024 for kib in _HUGE_PAGES.findall(text)) if text else None


def _count_threads(directory: Path) -> dict[str, int]:
    """Return, by CPU list, the number of threads that are bound to it."""
    held: dict[str, int] = {}
    for task in (directory / "task").glob("*/status"):
        cpus = parse_status(read_text(task))["cpus"]
        held[cpus] = held.get(cpus, 0) + 1
    return held


def find_listeners(ports: list[int], proc: Path = Path("/proc")) -> dict[str, list[str]]:
    """Return, by port, the addresses on which a process listens (`127.0.0.1`, `::`, `any`, ...)."""
    found: dict[str, list[str]] = {str(port): [] for port in ports}
    for name in ("net/tcp", "net/tcp6"):
        for line in read_text(proc / name).splitlines()[1:]:
            words = line.split()
            address, _, port = words[1].rpartition(":")
            if words[3] == "0A" and str(int(port, 16)) in found:
                found[str(int(port, 16))].append(_format_address(address))
    return found


def _format_address(text: str) -> str:
    """Return the kernel's hexadecimal address, in words where it is a common one."""
    if not text.strip("0"):
        return "any"
    if text == "0100007F":
        return "127.0.0.1"
    if text == "00000000000000000000000001000000":
        return "::1"
    if len(text) == 8:
        return ".".join(str(int(text[at : at + 2], 16)) for at in (6, 4, 2, 0))
    return text


def collect(paths: Paths) -> RuntimeAnswer:
    """Return the applied plan and, for each instance, its unit and its processes' placement."""
    plan = plans.read_machine_plan(paths.plan)
    instances = plan.get("instances", [])
    names = [unit_names.get_engine_unit(item) for item in instances]
    states = units.read_states(*names) if instances else {}
    rests = stop_state.read(paths)
    found = []
    for item, name in zip(instances, names):
        unit = states.get(name, {})
        placed = list_processes(unit.get("cgroup", "")) if unit.get("main_pid") else []
        row = {"index": item["index"], "unit": unit, "processes": placed}
        found.append(row if placed else {**row, "failure": _explain_end(paths, name)})
    return {
        "plan": plan,
        "certificate": read_text(paths.tls_crt),
        "certificate_standing": certificate.describe_current(paths, plan) if plan else None,
        "instances": found,
        "environment": _find_environment_fault(plan),
        "rests": stop_state.describe(rests) if rests else None,
        "listening": find_listeners([item["port"] for item in instances if item["port"]]),
        "nodes": sorted(
            int(node.name[4:]) for node in Path("/sys/devices/system/node").glob("node[0-9]*")
        ),
    }


def _explain_end(paths: Paths, unit: str) -> str:
    """Return why a unit ended, and what to do where that is known."""
    failure = units.explain_failure(unit, units.read_journal(unit))
    text = f"{failure.reason} (fix: {failure.fix})" if failure.fix else failure.reason
    return str(Secrets(paths).mask(text))


def _find_environment_fault(plan: MachinePlan) -> str | None:
    engine = plan.get("engine")
    return environments.find_fault(Machine(), engine["env_dir"]) if engine else None


def main(argv: list[str]) -> int:
    """`runtime`: one JSON object about the running engine."""
    del argv
    return answer({"ok": True, **collect(Paths())})
