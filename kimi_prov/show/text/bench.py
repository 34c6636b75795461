"""The bench document as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.show.text.lines import format_entry, format_hosts, format_stand_ins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROWS = {
    "memory": "memory",
    "layer": "one MoE layer",
    "single": "one request",
    "prefill": "its prompt",
    "decode": "each at once",
    "all": "all at once",
}
_TABLE = "{:>10} {:>8} {:>11} {:>10} {:>11} {:>10} {:>12}"
_HEAD = (
    "at once",
    "requests",
    "first token",
    "per token",
    "tok/s each",
    "tok/s all",
    "prompt tok/s",
)

_MORE = "{:>10} {:>9} {:>9} {:>6} {:>6} {:>8} {:>9} {:>8} {:>7}"
_MORE_HEAD = (
    *("at once", "between", "99 %", "cache", "found", "waiting", "preempted"),
    *("GPUs", "tok/J"),
)


def format_text(document: Mapping[str, Any]) -> str:
    """Write the bench document: each host's measurements, predictions, and last bench."""
    return format_hosts(document, _format_host, _describe_subject)


def _describe_subject(host: Mapping[str, Any]) -> str:
    if "compared" not in host:
        return str(host["detail"])
    return f"{host['model']} on {host['engine']['name']}"


def _format_host(host: Mapping[str, Any]) -> list[str]:
    if "compared" not in host:
        return format_stand_ins(host)
    return [
        *_format_measurements(host),
        *_format_comparison(host),
        *_format_changes(host),
        *_format_causes(host),
        *format_stand_ins(host),
        "",
        _describe_verdict(host),
    ]


def _format_measurements(host: Mapping[str, Any]) -> list[str]:
    memory, layer, serve = host["memory"], host["layer"], host["serve"]
    speed = memory["bytes_per_s"]
    by = {"probe": "", "torch": ", read through torch"}.get(memory["by"], "")
    text = f"{_format_rate(speed)}{by}" if speed else f"not measured: {memory['reason']}"
    busy = ", others work on it" if host["load"]["busy"] else ""
    lines = format_entry("load before", f"{host['load']['average']}{busy}")
    lines += [*format_entry("memory", text), *format_entry("one MoE layer", _describe_layer(layer))]
    lines += _format_request(serve)
    lines += ["", _TABLE.format(*_HEAD)]
    lines += [
        clean_text.clean_row(_TABLE.format(*_format_level(level))) for level in serve["levels"]
    ]
    return [*lines, "", *_format_more(serve)]


def _format_request(serve: Mapping[str, Any]) -> list[str]:
    lines = format_entry("request", f"{serve['input_tokens']} tokens, for {serve['output_tokens']}")
    load = serve.get("load")
    if load is None:
        return lines
    lines += format_entry("load", load["told"])
    if load["prompts"]:
        asked = sum(row["requests"] for row in serve["levels"])
        again = ", some more than once" if asked > (load["prompts_of_file"] or asked) else ""
        lines += format_entry("prompts", f"{load['prompts_of_file'] or 'some'} in the file{again}")
    warm = serve.get("warm_up")
    if warm:
        first = warm["ttft_s"]["median"]
        took = f", first token after {first:.3f} s" if first else ""
        plural = "s" * (warm["requests"] != 1)
        lines += format_entry(
            "warm-up", f"{warm['requests']} request{plural}, not among these{took}"
        )
    return lines


def _format_more(serve: Mapping[str, Any]) -> list[str]:
    """Write what the first table has no room for: times of tokens, engine, power, rounds."""
    rows = [_format_meanwhile(level) for level in serve["levels"]]
    lines = []
    if any(cell != "-" for row in rows for cell in row[1:]):
        lines += [
            _MORE.format(*_MORE_HEAD),
            *(clean_text.clean_row(_MORE.format(*row)) for row in rows),
        ]
        lines.append("")
    notes = []
    for level in serve["levels"]:
        said = []
        spread = (level.get("spread") or {}).get("aggregate_tok_s")
        if spread:
            low, high = _format_number(spread["low"]), _format_number(spread["high"])
            said.append(f"{low} to {high} tok/s of all in {level['rounds']} rounds")
        if (level.get("engine") or {}).get("preemptions"):
            said.append("PREEMPTED: the cache is too small for this load")
        if level.get("left_out"):
            said.append(f"{level['left_out']} prompts outside the client's limits, left out")
        if said:
            notes += format_entry(
                level.get("name") or f"{level['concurrency']} at once", "; ".join(said)
            )
    notes += _format_unknown(serve["levels"])
    return [*lines, *notes, ""] if notes else lines


def _format_meanwhile(level: Mapping[str, Any]) -> tuple[str, ...]:
    between, engine = level.get("itl_s") or {}, level.get("engine") or {}
    power, prefix = level.get("power") or {}, engine.get("prefix_cache") or {}
    cache, waiting, watts = (
        (found or {}).get(key)
        for found, key in (
            (engine.get("cache_use"), "max"),
            (engine.get("waiting"), "max"),
            (power.get("watts"), "mean"),
        )
    )
    return (
        _name_load(level),
        _format_milliseconds(between.get("median")),
        _format_milliseconds(between.get("p99")),
        _format_or_dash(cache, "{:.0%}"),
        _format_or_dash(prefix.get("hit_share"), "{:.0%}"),
        _format_or_dash(waiting, "{:.0f}"),
        _format_or_dash(engine.get("preemptions"), "{}"),
        _format_or_dash(watts, "{:.0f} W"),
        _format_or_dash(power.get("tokens_per_joule"), "{:.3g}"),
    )


def _name_load(level: Mapping[str, Any]) -> str:
    """Return the name of a load for a narrow column: requests at once, or a second."""
    return (
        str(level.get("name") or level["concurrency"]).removesuffix(" at once").replace(", ", " ")
    )


def _format_milliseconds(seconds: float | None) -> str:
    return _format_or_dash(None if seconds is None else seconds * 1e3, "{:.1f} ms")


def _format_or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _format_unknown(levels: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write once why figures of a load are not known."""
    lines = []
    for label, key in (("engine's counts", "engine"), ("power", "power")):
        reasons = [(level.get(key) or {}).get("reason") for level in levels]
        told = next((reason for reason in reasons if reason), None)
        if told:
            of = "" if all(reasons) else " (of some loads)"
            lines += format_entry(label, f"not known{of}: {told}")
    return lines


def _describe_layer(layer: Mapping[str, Any]) -> str:
    if not layer["available"]:
        return f"not measured: {layer['reason']}"
    if not layer["rows"] or layer["rows"][0]["seconds"] <= 0 or layer["layers_of_model"] <= 0:
        return "not measured: the result has no time of a layer"
    first = layer["rows"][0]
    whole = first["seconds"] * layer["layers_of_model"]
    steps = ", ".join(f"{row['seconds'] * 1e3:.2f} ms for {row['batch']}" for row in layer["rows"])
    part = f"; {layer['reason']}" if layer["reason"] else ""
    rate = _format_rate(first["bytes_per_s"])
    return (
        f"{layer['method']}, {layer['experts']} of {layer['experts_of_model']} experts, "
        f"{layer['threads']} threads: {steps} tokens; {rate} for one; "
        f"{layer['layers_of_model']} such layers alone allow {1 / whole:.1f} tok/s{part}"
    )


def _format_level(level: Mapping[str, Any]) -> tuple[str, ...]:
    first, each = level["ttft_s"]["median"], level["tpot_s"]["median"]
    failed = f" ({level['failed']} failed)" if level["failed"] else ""
    return (
        _name_load(level),
        f"{level['requests']}{failed}",
        f"{first:.3f} s" if first else "-",
        f"{each * 1e3:.1f} ms" if each else "-",
        _format_number(level["decode_tok_s"]),
        _format_number(level["aggregate_tok_s"]),
        _format_number(level["prefill_tok_s"]),
    )


def _format_comparison(host: Mapping[str, Any]) -> list[str]:
    lines = []
    for row in host["compared"]:
        if row["predicted"] is None or row["measured"] is None:
            continue
        low, expected, high = (
            _format_figure(row["predicted"][key], row["unit"])
            for key in ("low", "expected", "high")
        )
        measured = _format_figure(row["measured"], row["unit"])
        text = f"{measured}; predicted {expected} ({low} to {high})"
        lines += format_entry(_ROWS[row["name"]], f"{row['verdict'].upper()}: {text}")
    open_rows = [r for r in host["compared"] if r["unit"] == "tok_per_s" and not r["predicted"]]
    if open_rows:
        lines += format_entry("predicted", host["basis"])
    return lines


def _format_changes(host: Mapping[str, Any]) -> list[str]:
    last = host["last"]
    if last is None:
        return format_entry("last time", "this is the first")
    rows = ", ".join(f"{row['name']} {row['change']:+.1%}" for row in last["rows"])
    lines = format_entry(f"since {last['measured_at'][:10]}", rows or "nothing to compare")
    return lines + [line for text in last["differs"] for line in format_entry("  differs", text)]


def _format_causes(host: Mapping[str, Any]) -> list[str]:
    return [
        line
        for number, cause in enumerate(host["look_at"], start=1)
        for line in format_entry(
            f"look at {number}",
            ". ".join(part for part in (cause["title"], cause["observed"], cause["fix"]) if part),
        )
    ]


def _describe_verdict(host: Mapping[str, Any]) -> str:
    if host["normal"] is None:
        return "MEASURED; nothing was predicted to judge it by"
    return "NORMAL for this machine" if host["normal"] else "SLOWER than this machine should be"


def _format_figure(value: float, unit: str) -> str:
    return _format_rate(value) if unit == "bytes_per_s" else f"{_format_number(value)} tok/s"


def _format_rate(value: float) -> str:
    return f"{value / 1e9:.1f} GB/s"


def _format_number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
