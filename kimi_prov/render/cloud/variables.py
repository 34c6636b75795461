"""The settings of a cloud machine, as the variables of its inventory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.addresses import strip_login
from kimi_prov.planner.settings.definitions import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.planner.settings.parsing import Settings

RELEASE = "/usr/local/sbin/kimi-release"
MANIFEST = "manifests/weights.json"
CA_BUNDLE = "ca-bundle.pem"
# For others than this machine, and what is carried under a name of its own.
_NOT_CARRIED = ("kimi_cloud", "kimi_slurm_", "kimi_kubernetes_", "kimi_hosts_per_model")
_FILES = frozenset({"kimi_weights_manifest", "kimi_ca_bundle"})
_PROXIES = ("http_proxy", "https_proxy")


def adjust_settings(settings: Settings) -> Settings:
    """Return the settings as they count on the machine, which is deleted when it is idle."""
    if settings.idle_stop is None:
        return settings
    return replace(settings, idle_action="hook", idle_hook=RELEASE, wake="off")


def list_withheld(settings: Settings) -> list[str]:
    """Name the settings whose secrets are not carried: user data must hold no secret.

    Everyone who may describe the machine can read its user data.
    """
    files = [
        variable.name
        for variable in VARIABLES
        if _is_file(variable.kind)
        and variable.name not in _FILES
        and _read_value(settings, variable.name) is not None
        and not variable.name.startswith(_NOT_CARRIED)
    ]
    names = [name for name in _PROXIES if strip_login(getattr(settings, name) or "")[1]]
    return [*files, *(f"kimi_{name}" for name in names)]


def make_variables(settings: Settings) -> dict[str, Any]:
    """Give the variables that differ from their defaults, in the form that inventories have."""
    lines = dict(_list_changed(adjust_settings(settings)))
    if settings.manifest is not None:
        lines["kimi_weights_manifest"] = MANIFEST
    if settings.ca_bundle:
        lines["kimi_ca_bundle"] = CA_BUNDLE
    # The machine restarts itself for its driver, and kimi-up.service goes on.
    return {**lines, "nvidia_driver_reboot_ok": True, "nvidia_driver_reboot_self": True}


def make_manifest(settings: Settings) -> bytes | None:
    """Give the manifest that pins the weights; None where none does."""
    if settings.manifest is None:
        return None
    return (json.dumps(settings.manifest, separators=(",", ":")) + "\n").encode()


def _list_changed(settings: Settings) -> Iterator[tuple[str, Any]]:
    for variable in VARIABLES:
        value = _read_value(settings, variable.name)
        if variable.name.startswith(_NOT_CARRIED) or value == variable.default or value is None:
            continue
        if _is_file(variable.kind):
            continue
        if variable.kind == "interval":
            yield variable.name, f"{value}s"
        elif variable.name.removeprefix("kimi_") in _PROXIES:
            yield variable.name, strip_login(str(value))[0]
        else:
            yield variable.name, value


def _read_value(settings: Settings, name: str) -> Any:  # noqa: ANN401
    return getattr(settings, name.removeprefix("kimi_"))


def _is_file(kind: str) -> bool:
    return kind == "file"
