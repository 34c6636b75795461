"""Verify, status and bench documents as text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.durations import duration
from kimi_prov.contract.sizes import human

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
    return [line for text in host.get("stand_ins") or [] for line in _row("stand-in", text)]


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
            "model", f"{model['name']} ({model['revision']}), {human(model['bytes'])}, {verified}"
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
        f"{human(mounted['used_bytes'])} of {human(mounted['size_bytes'])} used"
        if mounted
        else "none"
    )
    available, total = memory["host_available_bytes"], memory["host_total_bytes"]
    free = f"{human(available)} of {human(total)} available"
    lines = [*_row("RAM disk", f"{disk}: {ram['reason']}"), *_row("memory", free)]
    for engine in memory["engines"]:
        lines += _row(f"  engine {engine['index']}", f"{human(engine['resident_bytes'])} resident")
    for placed in host["placement"]:
        nodes = ", ".join(
            f"node {node} {human(count)}" for node, count in sorted(placed["bytes_by_node"].items())
        )
        cpus = " and ".join(placed["cpus"]) or "none"
        policy = f", policy {placed['policies'][0]}" if placed["policies"] else ""
        huge = placed["huge_bytes"]
        lines += _row(
            f"  placed {placed['index']}",
            f"CPUs {cpus}; {nodes or 'no NUMA figures'}{policy}; {placed['threads']} threads"
            + (f"; {human(huge)} in huge pages" if huge is not None else ""),
        )
    return [*lines, *_row("machine up", duration(host["uptime_seconds"]))]


_ROWS = {
    "memory": "memory",
    "layer": "one MoE layer",
    "single": "one request",
    "prefill": "its prompt",
    "decode": "each at once",
    "all": "all at once",
}
_TABLE = "{:>7} {:>8} {:>11} {:>10} {:>11} {:>10} {:>12}"
_HEAD = (
    "at once",
    "requests",
    "first token",
    "per token",
    "tok/s each",
    "tok/s all",
    "prompt tok/s",
)


def bench(document: Mapping[str, Any]) -> str:
    """Write the bench document: for each host what was measured, predicted, and last time."""
    lines: list[str] = []
    for name, host in document["hosts"].items():
        if "compared" not in host:
            lines += [*_head(name, host["detail"]), *_stand_ins(host), ""]
            continue
        lines += _head(name, f"{host['model']} on {host['engine']['name']}")
        lines += _measured(host) + _compared(host) + _against_last(host) + _look_at(host)
        lines += [*_stand_ins(host), "", _normal(host), ""]
    return "\n".join(lines).rstrip() + "\n"


def _measured(host: Mapping[str, Any]) -> list[str]:
    memory, layer, serve = host["memory"], host["layer"], host["serve"]
    speed = memory["bytes_per_s"]
    by = {"probe": "", "torch": ", read through torch"}.get(memory["by"], "")
    text = f"{_rate(speed)}{by}" if speed else f"not measured: {memory['reason']}"
    busy = ", others work on it" if host["load"]["busy"] else ""
    lines = _row("load before", f"{host['load']['average']}{busy}")
    lines += [*_row("memory", text), *_row("one MoE layer", _layer(layer))]
    lines += _row("asked", f"{serve['input_tokens']} tokens, for {serve['output_tokens']}")
    lines += ["", _TABLE.format(*_HEAD)]
    lines += [_TABLE.format(*_level(level)) for level in serve["levels"]]
    return [*lines, ""]


def _layer(layer: Mapping[str, Any]) -> str:
    if not layer["available"]:
        return f"not measured: {layer['reason']}"
    first = layer["rows"][0]
    whole = first["seconds"] * layer["layers_of_model"]
    steps = ", ".join(f"{row['seconds'] * 1e3:.2f} ms for {row['batch']}" for row in layer["rows"])
    part = f"; {layer['reason']}" if layer["reason"] else ""
    return (
        f"{layer['method']}, {layer['experts']} of {layer['experts_of_model']} experts, "
        f"{layer['threads']} threads: {steps} tokens; {_rate(first['bytes_per_s'])} for one; "
        f"{layer['layers_of_model']} such layers alone allow {1 / whole:.1f} tok/s{part}"
    )


def _level(level: Mapping[str, Any]) -> tuple[str, ...]:
    first, each = level["ttft_s"]["median"], level["tpot_s"]["median"]
    failed = f" ({level['failed']} failed)" if level["failed"] else ""
    return (
        str(level["concurrency"]),
        f"{level['requests']}{failed}",
        f"{first:.3f} s" if first else "-",
        f"{each * 1e3:.1f} ms" if each else "-",
        _number(level["decode_tok_s"]),
        _number(level["aggregate_tok_s"]),
        _number(level["prefill_tok_s"]),
    )


def _compared(host: Mapping[str, Any]) -> list[str]:
    lines = []
    for row in host["compared"]:
        if row["predicted"] is None or row["measured"] is None:
            continue
        low, expected, high = (
            _figure(row["predicted"][key], row["unit"]) for key in ("low", "expected", "high")
        )
        text = f"{_figure(row['measured'], row['unit'])}; predicted {expected} ({low} to {high})"
        lines += _row(_ROWS[row["name"]], f"{row['verdict'].upper()}: {text}")
    open_rows = [r for r in host["compared"] if r["unit"] == "tok_per_s" and not r["predicted"]]
    if open_rows:
        lines += _row("predicted", host["basis"])
    return lines


def _against_last(host: Mapping[str, Any]) -> list[str]:
    last = host["last"]
    if last is None:
        return _row("last time", "this is the first")
    rows = ", ".join(f"{row['name']} {row['change']:+.1%}" for row in last["rows"])
    lines = _row(f"since {last['measured_at'][:10]}", rows or "nothing to compare")
    return lines + [line for text in last["differs"] for line in _row("  differs", text)]


def _look_at(host: Mapping[str, Any]) -> list[str]:
    return [
        line
        for number, cause in enumerate(host["look_at"], start=1)
        for line in _row(
            f"look at {number}",
            ". ".join(part for part in (cause["title"], cause["observed"], cause["fix"]) if part),
        )
    ]


def _normal(host: Mapping[str, Any]) -> str:
    if host["normal"] is None:
        return "MEASURED; nothing was predicted to judge it by"
    return "NORMAL for this machine" if host["normal"] else "SLOWER than this machine should be"


def _figure(value: float, unit: str) -> str:
    return _rate(value) if unit == "bytes_per_s" else f"{_number(value)} tok/s"


def _rate(value: float) -> str:
    return f"{value / 1e9:.1f} GB/s"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
