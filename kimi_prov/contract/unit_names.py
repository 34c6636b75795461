"""Names of the units that kimi-prov installs, and of the distribution's that it changes.

Decides: paths, unit names and users on the machine.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

FETCH = "kimi-fetch.service"
CONVERT = "kimi-convert.service"
STAGE = "kimi-stage.service"
WARM = "kimi-warm.service"
RAM_MOUNT = "srv-kimi-ram.mount"
PROXY = "kimi-proxy.service"
WEB = "kimi-web.service"
# Counts what keys use, and decides which of them may go on.
USAGE = "kimi-usage.service"
FIREWALL = "kimi-firewall.service"
# Orders and renews the certificate, and closes the port of its challenge.
ACME = "kimi-acme.service"
ACME_TIMER = "kimi-acme.timer"
# Compares the machine with what was applied to it.
DRIFT = "kimi-drift.service"
DRIFT_TIMER = "kimi-drift.timer"
# Writes kimi-prov's metrics of the machine; and serves these and the machine's own.
METRICS = "kimi-metrics.service"
METRICS_TIMER = "kimi-metrics.timer"
NODE_EXPORTER = "kimi-node-exporter.service"
# On a host that monitors others, or itself.
PROMETHEUS = "kimi-prometheus.service"
ALERTMANAGER = "kimi-alertmanager.service"
MONITOR_FIREWALL = "kimi-monitor-firewall.service"
# Detects that an engine hangs, keeps evidence, and restarts it.
WATCHDOG = "kimi-watchdog.service"
# Has the address that gateways share, or waits for it.
GATEWAY_ADDRESS = "kimi-gateway-address.service"
# Measures how long no client has asked; wakes the machine when one does.
IDLE = "kimi-idle.service"
IDLE_TIMER = "kimi-idle.timer"
WAKE = "kimi-wake.service"
WAKE_SOCKET = "kimi-wake.socket"
# At a boot, before the engines: restores what served where a switch was interrupted.
RETURN = "kimi-return.service"
# Transient: they run only while something is shared, installed, switched, stopped, stored, tuned or
# measured.
SHARE = "kimi-share.service"
SWITCH = "kimi-switch.service"
REST = "kimi-rest.service"
SESSIONS = "kimi-sessions.service"
DRIVER = "kimi-driver.service"
UPDATE = "kimi-update.service"
UNDRAIN = "kimi-undrain.service"
UNDRAIN_TIMER = "kimi-undrain.timer"
INSTALL = "kimi-install.service"
TUNE = "kimi-tune.service"
BENCH = "kimi-bench.service"
# Tries candidates of `tune`, and brings back what serves.
TUNING = "kimi-tuning.service"
# Code of the engine that is not a server: its parser, a proof, the parts of a bench.
SANDBOX = "kimi-sandbox.service"
# Code that the model wrote, when the acceptance suite runs it.
CODE = "kimi-code.service"

SERVE_TEMPLATE = "kimi-serve@.service"
# The engine on a host of a group that is not its head.
RANK = "kimi-rank.service"
SERVE_PREFIX = "kimi-serve@"
ALL_SERVE = f"{SERVE_PREFIX}*.service"
# systemd puts the instances of a template into a slice named after it, with `-` escaped.
SERVE_SLICE = "system-kimi\\x2dserve.slice"

# Every unit of ours, of any version: `destroy` removes these and no others.
OURS = (
    FETCH,
    CONVERT,
    STAGE,
    WARM,
    RAM_MOUNT,
    PROXY,
    USAGE,
    WEB,
    FIREWALL,
    ACME,
    ACME_TIMER,
    DRIFT,
    DRIFT_TIMER,
    METRICS,
    METRICS_TIMER,
    NODE_EXPORTER,
    PROMETHEUS,
    ALERTMANAGER,
    MONITOR_FIREWALL,
    WATCHDOG,
    GATEWAY_ADDRESS,
    IDLE,
    IDLE_TIMER,
    WAKE,
    WAKE_SOCKET,
    RETURN,
    SHARE,
    SWITCH,
    REST,
    SESSIONS,
    DRIVER,
    UPDATE,
    UNDRAIN,
    UNDRAIN_TIMER,
    INSTALL,
    TUNE,
    BENCH,
    TUNING,
    SANDBOX,
    CODE,
    SERVE_TEMPLATE,
    RANK,
)
# Those of them that exist while no job runs.
LASTING = (
    FETCH,
    CONVERT,
    STAGE,
    WARM,
    RAM_MOUNT,
    PROXY,
    USAGE,
    WEB,
    FIREWALL,
    ACME,
    ACME_TIMER,
    DRIFT_TIMER,
    METRICS_TIMER,
    NODE_EXPORTER,
    PROMETHEUS,
    ALERTMANAGER,
    MONITOR_FIREWALL,
    WATCHDOG,
    GATEWAY_ADDRESS,
    IDLE_TIMER,
    WAKE_SOCKET,
    RETURN,
    RANK,
)
_INSTANCE = re.compile(re.escape(SERVE_PREFIX) + r"\d+\.service")

HAPROXY = "haproxy.service"
# The distribution's own units of programs that ours run.
SITE_NODE_EXPORTER = "prometheus-node-exporter.service"
SITE_PROMETHEUS = "prometheus.service"
SITE_ALERTMANAGER = "prometheus-alertmanager.service"
FIREWALLD = "firewalld.service"
FABRIC_MANAGER = "nvidia-fabricmanager.service"
PERSISTENCED = "nvidia-persistenced.service"


def build_serve_name(index: int) -> str:
    """Return the name of the unit of engine instance `index`."""
    return f"{SERVE_PREFIX}{index}.service"


def is_serve(name: str) -> bool:
    """Return whether a unit runs one of our engines, or a host's part of one."""
    return name.startswith(SERVE_PREFIX) or name == RANK


def get_engine_unit(instance: Mapping[str, Any]) -> str:
    """Return the name of the unit that runs one of the plan's `instances`."""
    return str(instance.get("unit") or build_serve_name(instance["index"]))


def find_shared_file(name: str) -> str:
    """Return the name of the file that a unit of an engine has beside its drop-in."""
    return RANK if name == RANK else SERVE_TEMPLATE


def is_ours(name: str) -> bool:
    """Return whether kimi-prov makes a unit of this name."""
    return name in OURS or _INSTANCE.fullmatch(name) is not None


def list_journals() -> tuple[str, ...]:
    """Return our units for journalctl: instances by a pattern."""
    return tuple(ALL_SERVE if name == SERVE_TEMPLATE else name for name in OURS)


def shorten(name: str) -> str:
    """Return a unit's short name: serve@0, proxy, srv-kimi-ram.mount."""
    return name.removeprefix("kimi-").removesuffix(".service") if is_ours(name) else name


def find_unit(text: str) -> str | None:
    """Return the unit, or the pattern of all instances, that a user names; None for an unknown one.

    `serve` is all instances; any name may be given with `kimi-` and its suffix, or without.
    """
    wanted = {text, f"{text}.service", f"kimi-{text}", f"kimi-{text}.service"}
    if wanted & {SERVE_PREFIX.rstrip("@"), f"{SERVE_PREFIX.rstrip('@')}.service"}:
        return ALL_SERVE
    found = sorted(name for name in wanted if is_ours(name) and name != SERVE_TEMPLATE)
    return found[0] if found else None


def collect_units() -> dict[str, str]:
    """Return the plan's `units`: the units that roles name. An instance names its own."""
    return {
        "fetch": FETCH,
        "convert": CONVERT,
        "stage": STAGE,
        "warm": WARM,
        "ram_mount": RAM_MOUNT,
        "proxy": PROXY,
        "usage": USAGE,
        "web": WEB,
        "firewall": FIREWALL,
        "acme": ACME,
        "acme_timer": ACME_TIMER,
        "drift": DRIFT,
        "drift_timer": DRIFT_TIMER,
        "metrics": METRICS,
        "metrics_timer": METRICS_TIMER,
        "node_exporter": NODE_EXPORTER,
        "site_node_exporter": SITE_NODE_EXPORTER,
        "watchdog": WATCHDOG,
        "idle": IDLE,
        "idle_timer": IDLE_TIMER,
        "wake": WAKE,
        "wake_socket": WAKE_SOCKET,
        "install": INSTALL,
        "switch": SWITCH,
        "rest": REST,
        "return": RETURN,
        "tune": TUNE,
        "bench": BENCH,
        "rank": RANK,
        "haproxy": HAPROXY,
        "fabric_manager": FABRIC_MANAGER,
    }
