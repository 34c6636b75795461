"""Findings of `drift`: what on a machine is not as it was applied.

Decides: what counts as drift, and its causes (ids and titles).
"""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition, Remedy

_RECORD = "/var/lib/kimi/state/applied.json, which the last apply left, against the machine now"
_SYSTEMD = "systemctl show, and the files that systemd reads, against the record of the last apply"
_PROCESS = "/proc against the unit's own files and the record of the last apply"


def _define(
    name: str, title: str, source: str = _RECORD, remedy: Remedy = "software"
) -> Definition:
    return Definition(
        f"drift.{name}",
        title=title,
        severities=("warning",),
        source=source,
        remedy=remedy,
        concerns="deployment",
    )


DEFINITIONS = (
    _define("file", "A file of kimi-prov was changed"),
    _define("file_missing", "A file of kimi-prov is gone"),
    _define("file_added", "A file lies where only kimi-prov writes"),
    _define("link", "A link leads elsewhere"),
    _define("mount", "A file system is not mounted as it was"),
    _define("unit_override", "A unit has a drop-in that was not there", _SYSTEMD),
    _define("unit_masked", "A unit is masked", _SYSTEMD),
    _define("unit_disabled", "A unit does not start at boot any more", _SYSTEMD),
    _define("unit_replaced", "systemd reads a unit from another file", _SYSTEMD),
    _define("unit_stopped", "A unit that ran does not run", _SYSTEMD, "process"),
    _define("process", "A process does not run what its unit would start", _PROCESS, "process"),
    _define("port", "Another process listens on a port of the service", _PROCESS, "process"),
    _define("package", "A package has another version"),
    _define("package_missing", "A package is not installed any more"),
    _define("package_hold", "A package may be upgraded by others"),
    _define("driver", "Another NVIDIA driver is loaded", remedy="reboot"),
    _define("kernel", "A setting of the kernel was changed"),
    _define("firewall", "The packet filter's table of kimi-prov is not what it was"),
    _define("firewall_rule", "A rule in ufw or firewalld is gone"),
    _define("account", "An account or group of kimi-prov was changed"),
    _define("key_added", "There is an API key that kimi-prov did not make"),
    _define("key_missing", "An API key is gone"),
    _define("key_changed", "An API key was replaced"),
    _define("certificate", "The certificate is not the one that kimi-prov put there"),
    _define(
        "environment",
        "The environment of the engine or of the web UI is broken",
        "its interpreter, asked, and the RECORD of its packages",
    ),
    _define(
        "weights",
        "Weights are not as they were verified",
        "the model's manifest and the mark .kimi-verified",
    ),
    _define(
        "prepared",
        "Prepared weights are not as an engine left them",
        "owner and mode of their folder, and the files that the engine put aside",
    ),
    Definition(
        "drift.planned_otherwise",
        title="`apply` would decide {key} otherwise today",
        severities=("info",),
        source="the plan that was applied, against one made now from the same inventory",
        remedy="none",
        concerns="deployment",
    ),
)
