"""Verify and status documents as text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from kimi_prov.provision.progress import duration, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WIDTH = 80
LABEL = 22


def verify(document: Mapping[str, Any]) -> str:
    """Write the verify document: for each host its checks, one a line, then the verdict."""
    lines: list[str] = []
    for name, host in document["hosts"].items():
        lines += _head(name, host.get("endpoint", ""))
        lines += _row("seen from", f"{host['vantage']}: {host['vantage_reason']}")
        for check in host["checks"]:
            label = f"{check['status']:<4} {check['name']}"
            lines += _row(label, f"{check['detail']} ({check['seconds']:.2f} s)")
        lines += _stand_ins(host)
        lines += ["", _verdict(host["checks"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def status(document: Mapping[str, Any]) -> str:
    """Write the status document: for each host what runs, from what, and how full it is."""
    lines: list[str] = []
    for name, host in document["hosts"].items():
        lines += _head(name, host["detail"])
        if host.get("provisioned"):
            lines += _served(host) + _units(host) + _space(host)
        lines += [*_stand_ins(host), ""]
    return "\n".join(lines).rstrip() + "\n"


def _head(name: str, text: str) -> list[str]:
    return [f"{name}  {text}".rstrip(), "-" * WIDTH]


def _row(label: str, text: str) -> list[str]:
    """Wrap one labelled entry; further lines stand under the first."""
    wrapped = textwrap.wrap(text, WIDTH - LABEL, break_on_hyphens=False) or [""]
    first, *rest = wrapped
    return [f"{label:<{LABEL - 1}} {first}".rstrip(), *(" " * LABEL + line for line in rest)]


def _stand_ins(host: Mapping[str, Any]) -> list[str]:
    said = host.get("stand_ins") or []
    return [line for text in said for line in _row("stand-in", text)]


def _verdict(checks: Iterable[Mapping[str, Any]]) -> str:
    found = [check["status"] for check in checks]
    failed, skipped = found.count("fail"), found.count("skip")
    passed = f"{found.count('ok')} passed"
    return f"{'FAILED' if failed else 'PASSED'}: {passed}, {failed} failed, {skipped} skipped"


def _served(host: Mapping[str, Any]) -> list[str]:
    model, versions, port = host["model"], host["versions"], host["port"]
    engine = f"{versions['engine']} {versions['engine_version']} ({versions['engine_variant']})"
    verified = "weights verified" if model["weights_verified"] else "weights not verified"
    guard = "guarded" if port["guarded"] else "NOT GUARDED by nftables"
    networks = ", ".join(port["allowed_networks"]) or "the machine itself alone"
    waiting = "; the operator's is waiting: `kimi-prov key`" if port["key_not_shown_yet"] else ""
    return [
        *_row(
            "model", f"{model['name']} ({model['revision']}), {size(model['bytes'])}, {verified}"
        ),
        *_row("served as", ", ".join(model["served_names"])),
        *_row("from", model["directory"]),
        *_row("context", f"{model['context']} tokens"),
        *_row("engine", engine),
        *_row("proxy", f"HAProxy {versions['proxy']}"),
        *_row("port", f"{port['number']}, {guard}, for {networks}"),
        *_row("keys", ", ".join(port["keys"]) + waiting),
        *[
            line
            for engine in port["engines"]
            for line in _row(engine["name"], f"{engine['status']}, {engine['requests']} requests")
        ],
    ]


def _units(host: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, unit in sorted(host["units"].items()):
        since = unit["uptime_seconds"]
        up = f" for {duration(since)}" if since is not None else ""
        again = f", restarted {unit['restarts']} times" if unit["restarts"] else ""
        lines += _row(name.removesuffix(".service"), f"{unit['state']}{up}{again}")
    return lines


def _space(host: Mapping[str, Any]) -> list[str]:
    memory, ram = host["memory"], host["ram_disk"]
    mounted = ram["mounted"]
    disk = (
        f"{size(mounted['used_bytes'])} of {size(mounted['size_bytes'])} used"
        if mounted
        else "none"
    )
    free = f"{size(memory['host_available_bytes'])} of {size(memory['host_total_bytes'])} available"
    lines = [*_row("RAM disk", f"{disk}: {ram['reason']}"), *_row("memory", free)]
    for engine in memory["engines"]:
        lines += _row(f"  engine {engine['index']}", f"{size(engine['resident_bytes'])} resident")
    for placed in host["placement"]:
        nodes = ", ".join(
            f"node {node} {size(count)}" for node, count in sorted(placed["bytes_by_node"].items())
        )
        cpus = " and ".join(placed["cpus"]) or "none"
        lines += _row(f"  placed {placed['index']}", f"CPUs {cpus}; {nodes or 'no NUMA figures'}")
    return [*lines, *_row("machine up", duration(host["uptime_seconds"]))]
