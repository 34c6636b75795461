"""`diagnose`: what a bug report needs of this machine, in one JSON object; nothing is changed.

Each part is collected by itself: a part that fails is in `missing` with the reason. Logs have
limits in lines and bytes. The machine's own secrets are masked here already.

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
from kimi_prov.on_host.system import journals, plans, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_text
from kimi_prov.on_host.system.local_secrets import Secrets
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.on_host.system.process import NOT_FOUND, run
from kimi_prov.on_host.watchdog import bundles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kimi_prov.contract.documents.diagnose import DiagnoseAnswer
    from kimi_prov.contract.documents.plan import Plan

# Of each unit's journal, and of the kernel's.
MAX_LINES = 3000
MAX_BYTES = 384 << 10
# Of all journals together: an answer comes through Ansible in one piece.
MAX_LOG_BYTES = 4 << 20
# Of any other text.
MAX_TEXT = 192 << 10
# Seconds between two readings of an engine's counters, where requests run.
METRICS_INTERVAL_S = 3.0
_TIMEOUT_S = 10.0
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
    """Print what was collected."""
    del argv
    paths = Paths()
    return answer(Secrets(paths).mask(gather(paths)))


def gather(paths: Paths) -> DiagnoseAnswer:
    """Collect all parts; `missing` has the reason for each part that failed."""
    plan = plans.read_plan(paths.plan)
    found: dict[str, Any] = {"missing": {}, "plan": plan}
    parts: Mapping[str, Callable[[], Any]] = {
        "status": lambda: machine.collect(paths),
        "units": _read_units,
        "unit_files": _list_unit_files,
        "logs": _read_logs,
        "kernel": _read_kernel,
        "metrics": lambda: read_engine_metrics(plan),
        "configuration": lambda: read_configuration(paths),
        # A gateway has no engine.
        "packages": lambda: [] if gateways.is_gateway(plan) else list_packages(Path(ENGINE)),
        "gpus": _read_gpus,
        "hangs": lambda: bundles.read(paths),
        "facts": lambda: collect.describe(Machine(), timed=False),
    }
    for name, part in parts.items():
        try:
            found[name] = part()
        except (HostError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
            found[name] = None
            found["missing"][name] = f"{type(error).__name__}: {describe_error(error)}"
    return cast("DiagnoseAnswer", found)


def _read_units() -> dict[str, dict[str, str]]:
    return units.read_properties(unit_names.list_journals(), _PROPERTIES)


def _list_unit_files() -> str:
    names = sorted(name for name, unit in _read_units().items() if unit.get("FragmentPath"))
    return limit_text(run("systemctl", "cat", "--no-pager", "--", *names).stdout) if names else ""


def _read_logs() -> dict[str, dict[str, Any]]:
    """Return the end of each unit's journal; all share one limit, so engines come first."""
    left, found = MAX_LOG_BYTES, {}
    for name in sort_units(_read_units()):
        read = journals.read_last([name], MAX_LINES, most_bytes=min(MAX_BYTES, left))
        if read["entries"]:
            found[name] = {"entries": read["entries"], "cut": read["cut"]}
            left -= sum(len(entry["message"]) + 100 for entry in read["entries"])
        if left <= 0:
            break
    return found


def sort_units(names: Iterable[str]) -> list[str]:
    """Return units in the order of what a bug report needs first: engines, proxy, the others."""
    first = (unit_names.PROXY, unit_names.GATEWAY_ADDRESS)
    return sorted(names, key=lambda n: (not unit_names.is_serve(n), n not in first, n))


def read_configuration(paths: Paths) -> dict[str, str]:
    """Return the settings of HAProxy and, at a gateway, of keepalived; keys are in other files."""
    names = [name for name in (PROXY_CONFIG, ADDRESS_CONFIG) if paths.locate(name).exists()]
    return {os.path.basename(name): limit_text(read_text(paths.locate(name))) for name in names}


def _read_kernel() -> dict[str, Any]:
    read = journals.read_last([journals.KERNEL], MAX_LINES, most_bytes=MAX_BYTES)
    if read["entries"]:
        return {"entries": read["entries"], "cut": read["cut"]}
    # For a machine whose journal does not have the kernel's messages, and for a container.
    done = run("dmesg", "--notime")
    if done.returncode != 0:
        raise HostError(done.stderr.strip() or "dmesg has no output")
    lines = done.stdout.splitlines()[-MAX_LINES:]
    entries = [
        {"time_us": 0, "unit": journals.KERNEL, "priority": None, "message": line}
        for line in limit_text("\n".join(lines)).splitlines()
    ]
    return {"entries": entries, "cut": False}


def read_engine_metrics(plan: Plan, pause_s: float = METRICS_INTERVAL_S) -> list[dict[str, Any]]:
    """Read each instance's /metrics; where requests run, twice, to see whether it changes."""
    # A host that is not its group's head has no port: the head answers for it.
    ports = {
        unit_names.get_engine_unit(row): port
        for row in plan.get("instances") or []
        if (port := row["port"])
    }
    answers = ready.request_metrics(list(ports.values()), _TIMEOUT_S)
    found: list[dict[str, Any]] = [
        {"unit": unit, "first": text, "said": why, "second": None, "apart_s": None}
        for unit, (why, text) in zip(ports, answers)
    ]
    busy = [row for row in found if _has_requests(row["first"])]
    if busy:
        started = time.monotonic()
        time.sleep(pause_s)
        answers = ready.request_metrics([ports[row["unit"]] for row in busy], _TIMEOUT_S)
        for row, (why, text) in zip(busy, answers):
            row["said"], row["second"] = why, text
            row["apart_s"] = round(time.monotonic() - started, 3)
    for row in found:
        row["first"] = limit_text(row["first"])
        row["second"] = limit_text(row["second"]) if row["second"] is not None else None
    return found


def _has_requests(text: str) -> bool:
    state = metrics.parse_state(text)
    return state is not None and state.running > 0


def list_packages(link: Path) -> list[str]:
    """Return the packages of the engine's environment and their versions, by their folders."""
    if not link.exists():
        raise HostError(f"there is no {link}")
    folders = glob.glob(f"{os.path.realpath(str(link))}/lib/python3*/site-packages/*.dist-info")
    return sorted(os.path.basename(name)[: -len(".dist-info")] for name in folders)


def _read_gpus() -> str:
    done = run("nvidia-smi", "-q", timeout=60)
    if done.returncode == NOT_FOUND:
        return ""
    if done.returncode != 0:
        raise HostError((done.stderr or done.stdout).strip() or "nvidia-smi has no output")
    return limit_text(done.stdout)


def limit_text(text: str, most: int = MAX_TEXT) -> str:
    """Return the beginning of a text, with a note about how much is left out."""
    over = len(text) - most
    return f"{text[:most]}\n... ({over} more characters)\n" if over > 0 else text
