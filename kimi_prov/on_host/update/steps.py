"""Installs the waiting updates of the operating system, in steps that are watched.

`update VERB` reads one JSON object from standard input and answers with one.

Decides: which packages are updated, and what needs a restart (the steps).
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import gateways, groups, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.driver import apt
from kimi_prov.on_host.driver import steps as driver
from kimi_prov.on_host.endpoint import draining, haproxy, health
from kimi_prov.on_host.history import applied
from kimi_prov.on_host.system import forward_proxy, group_state, plans, process, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.update import waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import UpdatedPackage, UpdateLookAnswer
    from kimi_prov.on_host.update.waiting import Package

Answer = dict[str, Any]
# Updates that apt would do by a downgrade, a removal or against a hold are refused: an
# administrator has to decide them.
_OPTIONS = (
    "--yes",
    "--quiet",
    "--no-install-recommends",
    "--no-remove",
    *("-o", "Dpkg::Options::=--force-confold"),
    *("-o", "DPkg::Lock::Timeout=300"),
)


def main(argv: list[str]) -> int:
    """`update VERB`."""
    verb = _VERBS.get(argv[0] if argv else "")
    if verb is None:
        raise HostError(f"usage: update {' | '.join(_VERBS)}")
    # apt reads the forward proxy here; the program that is sent has no unit with that file.
    os.environ.update(forward_proxy.read_variables())
    return answer({"ok": True, **verb(json.load(sys.stdin))})


def list_updates(request: Answer) -> UpdateLookAnswer:
    """Refresh apt's lists; return what is to be installed, what is left out, and what it takes.

    `defer_restart`: leave out what takes effect only by a restart. The answer has `words` for
    `download` and `install`.
    """
    try:
        apt.run_apt("apt-get", "update", "--quiet", "-o", "APT::Update::Error-Mode=any")
    except HostError as error:
        raise HostError(
            f"apt's lists could not be refreshed: {error}; nothing was changed",
            "look at the machine's package sources: apt-get update",
        ) from None
    found = waiting.list_packages()
    if found is None:
        raise HostError("this machine has no apt", "update it by its own means")
    defer = bool(request.get("defer_restart"))
    chosen, left = choose(found, defer=defer)
    words = [f"{row.name}={row.candidate}" for row in chosen]
    rows = simulate(words)
    if any(row.kind == waiting.KERNEL for row in rows):
        headers = _find_headers(rows)
        rows = simulate([*words, *headers]) if headers else rows
        words += headers
    reasons = waiting.list_restart_reasons(waiting.read_effect())
    kinds = {row.kind for row in rows} & {*waiting.WANTS_RESTART}
    return {
        "words": words,
        "packages": [_describe_package(row) for row in rows],
        "left": left,
        "restart_reasons": reasons,
        "restart": not defer and bool(kinds or reasons),
        "serves": _is_serving(),
    }


def _describe_package(row: Package) -> UpdatedPackage:
    return {
        "name": row.name,
        "installed": row.installed,
        "candidate": row.candidate,
        "kind": row.kind,
        "held": row.held,
    }


def choose(found: list[Package], *, defer: bool) -> tuple[list[Package], list[Answer]]:
    """Choose what to install of the waiting packages; return the others with the reason."""
    chosen, left = [], []
    for row in found:
        why = _explain_left(row, defer=defer)
        if why:
            left.append({**row._asdict(), "why": why})
        elif row.kind != waiting.OTHER:
            chosen.append(row)
    return chosen, left


def _explain_left(row: Package, *, defer: bool) -> str:
    if row.kind == waiting.DRIVER:
        version = apt.parse_upstream(row.candidate)
        return f"set kimi_nvidia_driver_version: {version}, and run update again"
    if row.kind == waiting.OTHER:
        return ""
    if row.held:
        return f"somebody holds it: apt-mark unhold {row.name}"
    if defer and row.kind in waiting.WANTS_RESTART:
        return "it takes effect by a restart alone"
    return ""


def simulate(words: list[str]) -> list[Package]:
    """Return all that installing these would bring. Raises HostError for what is not allowed."""
    if not words:
        return []
    rows = waiting.parse(apt.run_apt("apt-get", "install", "--simulate", *_OPTIONS, *words))
    drivers = [row.name for row in rows if row.kind == waiting.DRIVER]
    if drivers:
        raise HostError(
            f"apt would change NVIDIA's driver with it: {', '.join(drivers)}; nothing was changed",
            "hold its packages (`kimi-prov apply` does), or set kimi_nvidia_driver_version",
        )
    return rows


def _find_headers(rows: list[Package]) -> list[str]:
    """Return the headers of a new kernel, where the driver needs them and apt would bring none.

    Without headers DKMS builds nothing and says nothing: the next start would be without GPUs.
    """
    if not _is_built_by_dkms():
        return []
    coming = {row.name for row in rows}
    names = [
        "linux-headers-" + row.name[len("linux-image-") :]
        for row in rows
        if row.name.startswith("linux-image-") and not row.installed
    ]
    missing = [name for name in names if name not in coming and apt.list_versions(name)]
    return [f"{name}={apt.list_versions(name)[0]}" for name in missing]


def _is_built_by_dkms() -> bool:
    return any("dkms" in name for name in driver.select_driver_packages(apt.list_installed()))


def download(request: Answer) -> Answer:
    """Fetch the packages: after this no network is needed."""
    apt.run_apt("apt-get", "install", "--download-only", *_OPTIONS, *_build_package_words(request))
    return {"changed": False}


def _build_package_words(request: Answer) -> list[str]:
    return [str(word) for word in request["words"]]


def _is_serving() -> bool:
    """Return whether an engine takes requests; for a rank, whether its group serves.

    The proxy of a rank's group is on another host.
    """
    where = Paths()
    plan = plans.read_plan(where.plan)
    if plan and not groups.serves_clients(plan):
        return group_state.read(where.group_run).phase == group_state.SERVING
    try:
        return any(row["status"] == "UP" for row in haproxy.list_servers(Paths().socket))
    except (OSError, HostError):
        return False


def require_serving(request: Answer) -> Answer:
    """Return that this gateway passes requests on. Raises HostError where it does not."""
    del request
    plan = plans.read_plan(Paths().plan)
    port = plan["proxy"]["port"] if plan else None
    if port is None or not health.has_server(port):
        raise HostError(
            "the other gateway sends to no machine: without this one nobody would answer clients",
            "see what each gateway sends to:  kimi-prov status INVENTORY",
        )
    return {"changed": False}


def drain(request: Answer) -> Answer:
    """Send no more requests to the engines, and wait until those under way have ended.

    They get `timeout_s`; the restart ends what is left then. Without a proxy there is nothing to
    drain: on a host of a group that does not serve itself. If this run is cut off, requests are
    sent again after `hold_s`. A gateway only counts: the requests that it passes on are cut.
    """
    paths, started = Paths(), time.monotonic()
    if not paths.socket.exists():
        return {"changed": False, "seconds": 0.0, "left": 0}
    if gateways.is_gateway(plans.read_plan(paths.plan)):
        left = sum(haproxy.count_requests(paths.socket).values())
        return {"changed": False, "seconds": 0.0, "left": left}
    _schedule_undrain(float(request["timeout_s"]) + float(request["hold_s"]))
    left = draining.drain(paths, float(request["timeout_s"]))
    return {"changed": True, "seconds": round(time.monotonic() - started, 1), "left": left}


def undrain(request: Answer) -> Answer:
    """Send requests to the engines again."""
    del request
    if gateways.is_gateway(plans.read_plan(Paths().plan)):
        return {"changed": False}
    draining.set_state(Paths(), draining.READY)
    _cancel_undrain()
    return {"changed": True}


def _schedule_undrain(seconds: float) -> None:
    """Undrain the engines after a time by a timer, in case no later step does it."""
    _cancel_undrain()
    done = process.run(
        *("systemd-run", "--quiet", f"--unit={unit_names.UNDRAIN}", f"--on-active={seconds}"),
        "--description=Kimi: send requests again, because the update has ended",
        *(sys.executable, "-I", layout.ZIPAPP, "proxy-state", "undrain"),
    )
    if done.returncode != 0:
        raise HostError(f"{unit_names.UNDRAIN} cannot be started: {done.stderr.strip()}")


def _cancel_undrain() -> None:
    """Stop the timer that would undrain the engines."""
    process.run("systemctl", "stop", unit_names.UNDRAIN_TIMER)


def install(request: Answer) -> Answer:
    """Install what was chosen, in a unit of its own; reload the proxy for a new HAProxy.

    Raises HostError where a new kernel has no module of the driver; not with `driver_follows`: then
    another driver is installed next, and checked against that kernel itself. `restarts`: the
    machine restarts after this, and its engines stay drained till then.
    """
    # A second step may take as long again.
    process.run("systemctl", "try-restart", unit_names.UNDRAIN_TIMER)
    before, auto = apt.list_installed(), process.run("apt-mark", "showauto").stdout.split()
    apt.install_in_unit(unit_names.UPDATE, *_OPTIONS, *_build_package_words(request))
    # apt marks packages that are named as installed by hand, and would never remove them again.
    named = {word.partition("=")[0] for word in _build_package_words(request)}
    if again := sorted(named & {name.partition(":")[0] for name in auto}):
        process.run("apt-mark", "auto", *again)
    after = apt.list_installed()
    changed = sorted(name for name in after if before.get(name) != after[name])
    # A reload starts the new program; requests under way end in the old one. It would also send
    # requests to drained engines again, and a restart of the machine starts the new program anyway.
    reloads = "haproxy" in changed and not request.get("restarts")
    if reloads and units.read_states(unit_names.PROXY)[unit_names.PROXY]["state"] == "active":
        units.control("reload", unit_names.PROXY)
    # Packages that update installed are no drift.
    applied.amend_packages(Paths())
    if _is_built_by_dkms() and not request.get("driver_follows"):
        driver.require_modules()
    return {
        "changed": bool(changed),
        "installed": [
            {"name": name, "from": before.get(name, ""), "to": after[name]} for name in changed
        ],
    }


def read_effect(request: Answer) -> Answer:
    """Return what has not taken effect. With `restarted` that is a failure: raises HostError.

    `driver_changed`: the driver differs from that of the last apply.
    """
    reasons = waiting.list_restart_reasons(waiting.read_effect())
    if reasons and request.get("restarted"):
        raise HostError(
            f"the machine started again, and still: {'; '.join(reasons)}",
            "look which kernel its boot loader takes: /etc/default/grub, uname -r",
        )
    if request.get("driver_changed"):
        # Packages that came with the driver are no drift either.
        applied.amend_driver(Paths())
    return {"restart_reasons": reasons, "stale_units": waiting.list_stale_units()}


_VERBS: dict[str, Callable[[Answer], Mapping[str, Any]]] = {
    "look": list_updates,
    "serves": require_serving,
    "download": download,
    "drain": drain,
    "undrain": undrain,
    "install": install,
    "effect": read_effect,
}
