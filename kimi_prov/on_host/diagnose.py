"""`diagnose`: what a bug report needs of this machine, in one JSON object; nothing is changed.

Each part is gathered by itself: what one of them cannot give stands in `missing` with the reason.
Logs have bounds in lines and bytes. The machine's own secrets are masked here already.

Decides: what `diagnose` recognises (what a machine gathers).
"""

from __future__ import annotations

import glob
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, cast

from kimi_prov.contract import gateways, unit_names
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.paths import ADDRESS_CONFIG, ENGINE, PROXY_CONFIG, Paths
from kimi_prov.on_host.engine import metrics, ready
from kimi_prov.on_host.probe import collect
from kimi_prov.on_host.status import machine
from kimi_prov.on_host.system import journals, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_json, read_text
from kimi_prov.on_host.system.local_secrets import Secrets
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.on_host.system.process import NOT_FOUND, run
from kimi_prov.on_host.watchdog import bundles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kimi_prov.contract.documents.answers import DiagnoseAnswer

# Of each unit, and of the kernel.
MOST_LINES = 3000
MOST_BYTES = 384 << 10
# Of all units together: an answer comes through Ansible in one piece.
MOST_LOG_BYTES = 4 << 20
# Of any other text.
MOST_TEXT = 192 << 10
# Between two readings of an engine's counters, where requests run.
APART_S = 3.0
_ANSWER_S = 10.0
_PROPERTIES = (
    *units.SHOWN,
    "Description",
    "FragmentPath",
    "DropInPaths",
    "StateChangeTimestamp",
    "ExecMainStartTimestamp",
    "ExecMainExitTimestamp",
    "ExecMainCode",
    "MemoryPeak",
    "CPUUsageNSec",
    "TasksCurrent",
)


def main(argv: list[str]) -> int:
    """Print what was gathered."""
    del argv
    paths = Paths()
    return answer(Secrets(paths).mask(gather(paths)))


def gather(paths: Paths) -> DiagnoseAnswer:
    """Gather all parts; `missing` tells of each that could not be gathered why."""
    plan = read_json(paths.plan)
    found: dict[str, Any] = {"missing": {}, "plan": plan}
    parts: Mapping[str, Callable[[], Any]] = {
        "status": lambda: machine.collect(paths),
        "units": _units,
        "unit_files": _unit_files,
        "logs": _logs,
        "kernel": _kernel,
        "metrics": lambda: engine_metrics(plan),
        "configuration": lambda: configuration(paths),
        # A gateway has no engine.
        "packages": lambda: [] if gateways.is_gateway(plan) else packages(Path(ENGINE)),
        "gpus": _gpus,
        "hangs": lambda: bundles.read(paths),
        "facts": lambda: collect.described(Machine(), timed=False),
    }
    for name, part in parts.items():
        try:
            found[name] = part()
        except (HostError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
            found[name] = None
            found["missing"][name] = f"{type(error).__name__}: {describe_error(error)}"
    return cast("DiagnoseAnswer", found)


def _units() -> dict[str, dict[str, str]]:
    return units.read_properties(unit_names.list_journals(), _PROPERTIES)


def _unit_files() -> str:
    names = sorted(name for name, unit in _units().items() if unit.get("FragmentPath"))
    return bounded(run("systemctl", "cat", "--no-pager", "--", *names).stdout) if names else ""


def _logs() -> dict[str, dict[str, Any]]:
    """Return the end of each unit's journal: those that serve first, for all have one bound."""
    left, found = MOST_LOG_BYTES, {}
    for name in in_order(_units()):
        read = journals.read_last([name], MOST_LINES, most_bytes=min(MOST_BYTES, left))
        if read["entries"]:
            found[name] = {"entries": read["entries"], "cut": read["cut"]}
            left -= sum(len(entry["message"]) + 100 for entry in read["entries"])
        if left <= 0:
            break
    return found


def in_order(names: Iterable[str]) -> list[str]:
    """Return units in the order of what a bug report needs first: engines, proxy, the others."""
    first = (unit_names.PROXY, unit_names.GATEWAY_ADDRESS)
    return sorted(names, key=lambda n: (not unit_names.is_serve(n), n not in first, n))


def configuration(paths: Paths) -> dict[str, str]:
    """Return what HAProxy and, at a gateway, keepalived are told; keys lie in other files."""
    names = [name for name in (PROXY_CONFIG, ADDRESS_CONFIG) if paths.locate(name).exists()]
    return {os.path.basename(name): bounded(read_text(paths.locate(name))) for name in names}


def _kernel() -> dict[str, Any]:
    read = journals.read_last([journals.KERNEL], MOST_LINES, most_bytes=MOST_BYTES)
    if read["entries"]:
        return {"entries": read["entries"], "cut": read["cut"]}
    # A machine whose journal does not take the kernel's messages, and a container.
    done = run("dmesg", "--notime")
    if done.returncode != 0:
        raise HostError(done.stderr.strip() or "dmesg gave nothing")
    lines = done.stdout.splitlines()[-MOST_LINES:]
    entries = [
        {"time_us": 0, "unit": journals.KERNEL, "priority": None, "message": line}
        for line in bounded("\n".join(lines)).splitlines()
    ]
    return {"entries": entries, "cut": False}


def engine_metrics(plan: Mapping[str, Any], pause_s: float = APART_S) -> list[dict[str, Any]]:
    """Read each instance's /metrics; where requests run a second time, to see whether it moves."""
    found: list[dict[str, Any]] = []
    for instance in plan.get("instances") or []:
        port = instance["port"]
        why, text = ready.send_request(port, "GET", "/metrics", timeout_s=_ANSWER_S)
        row: dict[str, Any] = {
            "unit": unit_names.get_engine_unit(instance),
            "first": text,
            "said": why,
        }
        found.append({**row, "second": None, "apart_s": None})
    busy = [row for row in found if _runs(row["first"])]
    if busy:
        started = time.monotonic()
        time.sleep(pause_s)
        ports = {unit_names.get_engine_unit(one): one["port"] for one in plan["instances"]}
        for row in busy:
            why, row["second"] = ready.send_request(
                ports[row["unit"]], "GET", "/metrics", timeout_s=_ANSWER_S
            )
            row["said"], row["apart_s"] = why, round(time.monotonic() - started, 3)
    for row in found:
        row["first"] = bounded(row["first"])
        row["second"] = bounded(row["second"]) if row["second"] is not None else None
    return found


def _runs(text: str) -> bool:
    state = metrics.parse_state(text)
    return state is not None and state.running > 0


def packages(link: Path) -> list[str]:
    """Name the packages of the engine's environment and their versions, as their folders do."""
    if not link.exists():
        raise HostError(f"there is no {link}")
    folders = glob.glob(f"{os.path.realpath(str(link))}/lib/python3*/site-packages/*.dist-info")
    return sorted(os.path.basename(name)[: -len(".dist-info")] for name in folders)


def _gpus() -> str:
    done = run("nvidia-smi", "-q", timeout=60)
    if done.returncode == NOT_FOUND:
        return ""
    if done.returncode != 0:
        raise HostError((done.stderr or done.stdout).strip() or "nvidia-smi gave nothing")
    return bounded(done.stdout)


def bounded(text: str, most: int = MOST_TEXT) -> str:
    """Return the beginning of a text, saying how much is left out."""
    over = len(text) - most
    return f"{text[:most]}\n... ({over} more characters)\n" if over > 0 else text
