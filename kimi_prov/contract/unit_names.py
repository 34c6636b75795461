"""Names of the units that kimi-prov installs, and of the distribution's that it changes."""

from __future__ import annotations

FETCH = "kimi-fetch.service"
CONVERT = "kimi-convert.service"
STAGE = "kimi-stage.service"
WARM = "kimi-warm.service"
RAM_MOUNT = "srv-kimi-ram.mount"
PROXY = "kimi-proxy.service"
FIREWALL = "kimi-firewall.service"
# Transient: they run while packages are installed, or while a machine measures itself.
DRIVER = "kimi-driver.service"
BENCH = "kimi-bench.service"

SERVE_TEMPLATE = "kimi-serve@.service"
SERVE_PREFIX = "kimi-serve@"
ALL_SERVE = f"{SERVE_PREFIX}*.service"
# systemd puts the instances of a template into a slice named after it, with `-` escaped.
SERVE_SLICE = "system-kimi\\x2dserve.slice"

HAPROXY = "haproxy.service"
FIREWALLD = "firewalld.service"
FABRIC_MANAGER = "nvidia-fabricmanager.service"
PERSISTENCED = "nvidia-persistenced.service"


def serve(index: int) -> str:
    """Name of the unit of engine instance `index`."""
    return f"{SERVE_PREFIX}{index}.service"


def is_serve(name: str) -> bool:
    """Whether a unit is one of our engine instances."""
    return name.startswith(SERVE_PREFIX)
