"""The documents of commands on a Kubernetes folder, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.show.text.formats import describe_uptime
from kimi_prov.show.text.lines import format_entry, format_hosts, format_stand_ins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def format_changes(rows: Sequence[tuple[str, str, Sequence[str]]], *, diff: bool) -> str:
    """Write the changes of an apply. Rows: object, its change, values that differ."""
    lines = []
    for name, verdict, values in rows:
        if verdict != "unchanged":
            lines.append(clean_text.clean_row(f"{verdict:<10} {name}"))
            lines += [clean_text.clean_row(f"             {value}") for value in values if diff]
    count = {
        word: sum(row[1] == word for row in rows) for word in dict.fromkeys(r[1] for r in rows)
    }
    total = ", ".join(f"{word} {number}" for word, number in count.items())
    return "\n".join([*lines, f"objects: {total}"]) + "\n"


def format_served(urls: Sequence[str], model: str, path: str) -> str:
    """Write the URLs of a model, after an apply or a start."""
    lines = [line for url in urls for line in format_entry("served at", url)]
    lines += format_entry("model", model)
    lines += format_entry("reach it from here", f"kimi-prov connect {path}")
    return "\n".join(lines) + "\n"


def format_status(document: Mapping[str, Any]) -> str:
    """Write the status document of a folder."""
    return format_hosts(document, _format_host)


def _format_host(host: Mapping[str, Any]) -> list[str]:
    return [*(_format_state(host) if host["provisioned"] else []), *format_stand_ins(host)]


def _format_state(host: Mapping[str, Any]) -> list[str]:
    found = host["kubernetes"]
    up = describe_uptime(found["since_seconds"])
    plan = "the folder's" if found["plan_current"] else "another than the folder's: apply"
    lines = [
        *format_entry("state", f"{host['state']}{up}"),
        *format_entry(
            "cluster", f"{found['context'] or 'of kubectl'}, namespace {found['namespace']}"
        ),
        *format_entry(found["kind"], f"{found['ready']} of {found['replicas']} ready"),
        *[line for url in found["endpoints"] for line in format_entry("endpoint", url)],
        *format_entry("plan", plan),
    ]
    if found["fetch"]:
        lines += format_entry("weights", f"{found['fetch']['job']}: {found['fetch']['detail']}")
    for pod in found["pods"]:
        lines += format_entry("pod", pod["name"])
        again = f", restarted {pod['restarts']} times" if pod["restarts"] else ""
        ready = "ready" if pod["ready"] else "not ready"
        age = describe_uptime(pod["uptime_seconds"])
        reason = f" ({pod['reason']})" if pod["reason"] else ""
        lines += format_entry(
            "", f"{pod['phase']}{reason}{age} on {pod['node'] or 'no node'}, {ready}{again}"
        )
    if host["fix"]:
        lines += format_entry("fix", host["fix"])
    return lines
