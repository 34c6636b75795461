"""The results of a bench as tables and lines, which HTML draws and Markdown writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.show.report.plots import Line, Point, Table
from kimi_prov.show.text.formats import clean, format_figure, format_share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Host = dict[str, Any]
_NONE = "-"
_NAMES = {
    "memory": "Memory, GB/s",
    "layer": "One MoE layer, GB/s",
    "single": "One request, tokens/s",
    "prefill": "Its prompt, tokens/s",
    "decode": "Each of the planned number at once, tokens/s",
    "all": "All of these together, tokens/s",
}
# Figures of memory; all others are in tokens a second.
_BYTES = {"memory", "layer"}
NOW, LAST, PREDICTED = "this time", "the last time", "predicted"


def has_measurements(host: Mapping[str, Any]) -> bool:
    """Whether a host's entry has figures at all."""
    return "serve" in host


def describe_verdict(host: Mapping[str, Any]) -> str:
    """Return the verdict as a sentence."""
    if not has_measurements(host):
        return f"Not measured: {clean(host['detail'])}"
    if not host["ok"]:
        return f"Not all requests were answered: {clean(host['detail'])}"
    if host["normal"] is None:
        return "Measured; nothing was predicted to judge it by."
    if host["normal"]:
        return "Normal for this machine."
    return "Slower than this machine should be."


def describe_bench(host: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe what was measured: machine, engine, load, time."""
    engine, machine = host["engine"], host.get("machine") or {}
    serve, load = host["serve"], host["serve"].get("load") or {}
    gpus = [f"{row['count']} x {row['model']}" for row in machine.get("gpus") or ()]
    cpu = machine.get("processor")
    sockets = f"{machine['sockets']} x " if (machine.get("sockets") or 1) > 1 else ""
    rows = [
        ("Model", f"{host['model']} on {' '.join(str(part) for part in engine.values())}"),
        ("Machine", ", ".join([f"{sockets}{cpu}" if cpu else "", *gpus]).strip(", ")),
        ("Request", f"{serve['input_tokens']} tokens, for {serve['output_tokens']}"),
        ("Load", load.get("told") or ""),
        ("Warm-up", _describe_warm_up(serve.get("warm_up"))),
        ("When", host["measured_at"]),
        ("Other work", "others worked on it" if host["load"]["busy"] else ""),
    ]
    return [(label, clean(text)) for label, text in rows if text]


def _describe_warm_up(warm: Mapping[str, Any] | None) -> str:
    if not warm:
        return ""
    first = warm["ttft_s"]["median"]
    took = f", first token after {first:.3f} s" if first else ""
    return f"{_count(warm['requests'], 'request')}, in no figure{took}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def build_speed_table(host: Mapping[str, Any]) -> Table:
    """Return the loads: requests, times to the first token and between tokens, speeds."""
    return Table(
        "The loads. First token and between tokens: median, and the 99th percentile",
        (
            *("At once", "Requests", "First token, s", "Between tokens, ms", "Each, tokens/s"),
            *("All, tokens/s", "Over the rounds"),
        ),
        tuple(
            (
                _name_load(level),
                _describe_requests(level),
                _format_both(level["ttft_s"], 1.0),
                _format_both(level.get("itl_s") or level["tpot_s"], 1000.0),
                _format_known(level["decode_tok_s"]),
                _format_known(level["aggregate_tok_s"]),
                _format_range((level.get("spread") or {}).get("aggregate_tok_s")),
            )
            for level in host["serve"]["levels"]
        ),
    )


def _name_load(level: Mapping[str, Any]) -> str:
    """Return the name of a load: requests at once, or a second."""
    name = str(level.get("name") or "").removesuffix(" at once")
    return clean(name) if name and not name.isdigit() else f"{level['concurrency']:,}"


def _describe_requests(level: Mapping[str, Any]) -> str:
    failed = f", {level['failed']} failed" if level["failed"] else ""
    left = f", {level['left_out']} left out" if level.get("left_out") else ""
    return f"{level['requests']:,}{failed}{left}"


def build_count_table(host: Mapping[str, Any]) -> Table | None:
    """Return the engine's counts and the GPUs' power; None where nothing is known."""
    rows = []
    for level in host["serve"]["levels"]:
        engine, power = level.get("engine") or {}, level.get("power") or {}
        cache, prefix = engine.get("cache_use"), engine.get("prefix_cache") or {}
        running, waiting = engine.get("running"), engine.get("waiting")
        cells = (
            format_share(cache["max"]) if cache else _NONE,
            format_share(prefix["hit_share"]) if prefix.get("hit_share") is not None else _NONE,
            format_figure(running["mean"]) if running else _NONE,
            format_figure(waiting["max"]) if waiting else _NONE,
            str(engine["preemptions"]) if engine.get("preemptions") is not None else _NONE,
            format_figure(power["watts"]["mean"]) if power.get("watts") else _NONE,
            format_figure(power["tokens_per_joule"]) if power.get("tokens_per_joule") else _NONE,
        )
        rows.append((_name_load(level), *cells))
    if all(cell == _NONE for row in rows for cell in row[1:]):
        return None
    return Table(
        "What the engine counted meanwhile, other users' requests among it, and what its GPUs drew",
        (
            *("At once", "Cache in use, most", "Prompts found in it", "Running, mean"),
            *("Waiting, most", "Preempted", "GPUs, W", "Tokens a joule"),
        ),
        tuple(rows),
    )


def list_unknown(host: Mapping[str, Any]) -> list[str]:
    """List the reasons why figures of the engine or of power are unknown, each once."""
    levels = host["serve"]["levels"]
    reasons = [
        f"{label}: {(level.get(key) or {}).get('reason')}."
        for label, key in (("The engine's counts", "engine"), ("Power", "power"))
        for level in levels
        if (level.get(key) or {}).get("reason")
    ]
    return [clean(reason) for reason in dict.fromkeys(reasons)]


def build_comparison_table(host: Mapping[str, Any]) -> Table | None:
    """Return each figure with its prediction; None if there is no prediction."""
    rows = []
    for row in host["compared"]:
        if row["measured"] is None or row["predicted"] is None:
            continue
        size = 1e9 if row["unit"] == "bytes_per_s" else 1.0
        low, expected, high = (row["predicted"][key] / size for key in ("low", "expected", "high"))
        told = f"{format_figure(expected)} ({format_figure(low)} to {format_figure(high)})"
        rows.append(
            (_NAMES[row["name"]], format_figure(row["measured"] / size), told, row["verdict"])
        )
    head = ("Figure", "Measured", "Predicted", "Verdict")
    return Table("Beside what was predicted", head, tuple(rows)) if rows else None


def build_change_table(host: Mapping[str, Any]) -> Table | None:
    """Return the change of each figure since the last bench; None for the first."""
    last = host["last"]
    if last is None or not last["rows"]:
        return None
    rows = []
    for row in last["rows"]:
        size, unit = (1e9, "GB/s") if row["name"] in _BYTES else (1.0, "tokens/s")
        then, now = (format_figure(row[key] / size) for key in ("then", "now"))
        rows.append(
            (clean(row["name"]), f"{then} {unit}", f"{now} {unit}", f"{row['change']:+.1%}")
        )
    caption = f"Since the last time, {clean(last['measured_at'])}"
    return Table(caption, ("Figure", "Then", "Now", "Change"), tuple(rows))


def build_throughput_lines(host: Mapping[str, Any]) -> list[Line]:
    """Return tokens a second of all requests together against requests at once."""
    now = _build_points(
        host["serve"]["levels"], lambda level: level["aggregate_tok_s"], _get_spread
    )
    return _name_lines(
        now, _read_last_points(host, "aggregate_tok_s"), _read_predicted_points(host)
    )


def build_first_token_lines(host: Mapping[str, Any]) -> list[Line]:
    """Return the median seconds to the first token against requests at once."""
    now = _build_points(
        host["serve"]["levels"],
        lambda level: level["ttft_s"]["median"],
        lambda level: (level.get("spread") or {}).get("ttft_s"),
    )
    return _name_lines(now, _read_last_points(host, "ttft_s"), [])


def _get_spread(level: Mapping[str, Any]) -> Mapping[str, float] | None:
    return (level.get("spread") or {}).get("aggregate_tok_s")


def _build_points(
    levels: Sequence[Mapping[str, Any]],
    of: Callable[[Mapping[str, Any]], float | None],
    between: Callable[[Mapping[str, Any]], Mapping[str, float] | None],
) -> list[Point]:
    found = []
    for level in sorted(levels, key=lambda level: level["concurrency"]):
        value, ends = of(level), between(level) or {}
        if value:
            found.append(Point(level["concurrency"], value, ends.get("low"), ends.get("high")))
    return found


def _read_last_points(host: Mapping[str, Any], name: str) -> list[Point]:
    levels = (host["last"] or {}).get("levels") or []
    return [Point(row["concurrency"], row[name]) for row in levels if row[name]]


def _read_predicted_points(host: Mapping[str, Any]) -> list[Point]:
    """Return the prediction for one request, and for the planned number together."""
    planned = (host.get("serving") or {}).get("concurrency")
    found: list[Point] = []
    for name, at in (("single", 1), ("all", planned)):
        row = next((row for row in host["compared"] if row["name"] == name), None)
        if row and row["predicted"] and at and at not in [point.x for point in found]:
            told = row["predicted"]
            found.append(Point(at, told["expected"], told["low"], told["high"]))
    return found


def _name_lines(now: list[Point], last: list[Point], predicted: list[Point]) -> list[Line]:
    lines = ((1, NOW, now), (2, LAST, last), (3, PREDICTED, predicted))
    return [Line(number, name, tuple(points)) for number, name, points in lines if points]


def build_line_table(caption: str, lines: Sequence[Line]) -> Table:
    """Return the figures of lines as text."""
    steps = sorted({point.x for line in lines for point in line.points})
    rows = []
    for line in lines:
        by_step = {point.x: format_figure(point.y) for point in line.points}
        rows.append((line.name, *(by_step.get(step, _NONE) for step in steps)))
    return Table(caption, ("Requests at once", *(f"{step:,.0f}" for step in steps)), tuple(rows))


def _format_both(found: Mapping[str, float | None], times: float) -> str:
    median, p99 = found["median"], found["p99"]
    if median is None:
        return _NONE
    return format_figure(median * times) + (
        f", {format_figure(p99 * times)}" if p99 is not None else ""
    )


def _format_range(found: Mapping[str, float] | None) -> str:
    return f"{format_figure(found['low'])} to {format_figure(found['high'])}" if found else _NONE


def _format_known(value: float | None) -> str:
    return format_figure(value) if value is not None else _NONE
