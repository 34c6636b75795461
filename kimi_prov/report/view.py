"""What every form of the report says: sentences and figures, made once from a check document."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.sizes import human

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Target = Mapping[str, Any]

UNKNOWN = "unknown"
# Quotes and facts come from strangers: nothing of them may steer a terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
_LEAST_CONTEXT = 4096
SPEEDS = (
    ("decode_tok_s", "Writing, one request", "tokens/s"),
    ("aggregate_tok_s", "Writing, all requests together", "tokens/s"),
    ("prefill_tok_s", "Reading the question", "tokens/s"),
    ("load_s", "From start to first answer", "s"),
)
_KINDS = ("weights", "cache", "overhead", "ramdisk")
STATUS = {"fits": "Fits", "warnings": "Fits, with warnings", "blocked": "Blocked"}


@dataclass(frozen=True)
class Segment:
    """A part of a memory: `kind` is weights, cache, overhead, ramdisk or free."""

    kind: str
    label: str
    size: int


@dataclass(frozen=True)
class Bar:
    """How one memory is shared out, in bytes. `needed` above `total` does not fit."""

    label: str
    total: int
    segments: tuple[Segment, ...]

    @property
    def needed(self) -> int:
        """What the segments take that are not free room."""
        return sum(part.size for part in self.segments if part.kind != "free")


@dataclass(frozen=True)
class Span:
    """A range with its expected value; all None where it is not known."""

    low: float | None
    expected: float | None
    high: float | None

    def __str__(self) -> str:
        if self.expected is None:
            return UNKNOWN
        if self.low is None or self.high is None or self.low == self.high:
            return figure(self.expected)
        return f"{figure(self.expected)} ({figure(self.low)} to {figure(self.high)})"


def clean(value: object) -> str:
    """Give text without control characters, on one line."""
    if isinstance(value, (list, tuple)):
        value = ", ".join(str(item) for item in value)
    return " ".join(_CONTROL.sub(" ", str(value)).split())


def figure(value: float | None) -> str:
    """Give a number with three significant figures, thousands set apart."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    digits = max(0, 2 - _magnitude(value))
    return (
        f"{round(value, 2 - _magnitude(value)):,.{digits}f}" if abs(value) < 1e15 else f"{value:g}"
    )


def money(value: float | None) -> str:
    """Give dollars: cents below a hundred, whole dollars above."""
    if value is None:
        return UNKNOWN
    return f"${value:,.0f}" if abs(value) >= 100 else f"${value:,.2f}"


def duration(seconds: float | None) -> str:
    """Give a time as a person says it."""
    if seconds is None:
        return UNKNOWN
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def share(value: float) -> str:
    """Give a share as a percentage that stays honest near nothing."""
    return f"{value:.0%}" if value >= 0.1 else f"{100 * value:.2g}%"


def title(targets: Sequence[Target]) -> str:
    """Say what the report is about."""
    models = list(dict.fromkeys(clean(t["plan"]["model"]["name"]) for t in targets))
    many = (
        f"{clean(targets[0]['name'])}" if len(targets) == 1 else f"{len(targets)} machines compared"
    )
    return f"Serving {' and '.join(models)}: {many}"


def span(values: Mapping[str, float | None]) -> Span:
    """Read {low, expected, high}."""
    return Span(values.get("low"), values.get("expected"), values.get("high"))


def of_severity(target: Target, *severities: str) -> list[Mapping[str, Any]]:
    """Give the findings of these severities in the order of the document."""
    return [row for row in target["findings"] if row["severity"] in severities]


def status(target: Target) -> str:
    """Tell "blocked", "warnings" or "fits"."""
    if of_severity(target, "blocker"):
        return "blocked"
    return "warnings" if of_severity(target, "warning") else "fits"


def verdict(target: Target) -> str:
    """Say in a sentence or two whether the target serves the model, and how well."""
    plan = target["plan"]
    model = f"{clean(plan['model']['name'])} ({plan['model']['weights_format']})"
    blockers = of_severity(target, "blocker")
    if blockers:
        more = len(blockers) - 1
        rest = f" {more} more blocker{'s' * (more > 1)} below." if more else ""
        return f"Cannot serve {model} as it stands. {_sentence(blockers[0]['title'])}{rest}"
    speed = span(plan["throughput"]["decode_tok_s"])
    many = plan["throughput"]["concurrency"]
    pace = "speed not estimated"
    if speed.expected is not None:
        pace = f"each at about {_pace(speed)}"
    few = running(target)
    wait = f" ({few} of them running, the others waiting)" if few < many else ""
    return (
        f"Serves {model} with {engine(target)}: up to {plan['model']['context']:,} tokens of "
        f"context, {many} request{'s' * (many != 1)} at once{wait}, {pace}." + _by_hand(target)
    )


def _by_hand(target: Target) -> str:
    """Say where `apply` would not carry the plan out."""
    if target["plan"]["engine"].get("provisioned", True):
        return ""
    return " This engine is planned here and has to be installed by hand."


def running(target: Target) -> int:
    """Tell how many of the planned requests the speeds count as running at the same time."""
    speed = target["plan"]["throughput"]
    one, many = speed["decode_tok_s"]["expected"], speed["aggregate_tok_s"]["expected"]
    planned = int(speed["concurrency"])
    return min(planned, max(1, round(many / one))) if one and many else planned


def engine(target: Target) -> str:
    """Name the engine, its version and build."""
    found = target["plan"]["engine"]
    return clean(f"{found['name']} {found['version']} ({found['variant']})")


def processor(target: Target) -> str:
    """Name the processors."""
    cpu = target["facts"].get("cpu") or {}
    name = clean(cpu.get("catalogue_name") or cpu.get("model") or UNKNOWN)
    cores = f", {cpu['cores']} cores" if cpu.get("cores") else ""
    sockets = cpu.get("sockets") or 1
    return f"{sockets} x {name}{cores}" if sockets > 1 else f"{name}{cores}"


def gpus(target: Target) -> str:
    """Name the GPUs with their number."""
    counted: dict[str, int] = {}
    for gpu in target["facts"].get("gpus") or ():
        name = clean(gpu.get("model") or gpu.get("name_raw") or UNKNOWN)
        counted[name] = counted.get(name, 0) + 1
    return ", ".join(f"{number} x {name}" for name, number in counted.items()) or "none"


def table(targets: Sequence[Target]) -> list[tuple[str, list[str]]]:
    """Set the targets side by side: a label, and a cell for each target."""
    rows: list[tuple[str, list[str]]] = [
        ("Verdict", [STATUS[status(t)] for t in targets]),
        ("Blockers", [str(len(of_severity(t, "blocker"))) for t in targets]),
        ("Warnings", [str(len(of_severity(t, "warning"))) for t in targets]),
        ("Processors", [processor(t) for t in targets]),
        ("Memory", [human((t["facts"].get("memory") or {}).get("total_bytes")) for t in targets]),
        ("GPUs", [gpus(t) for t in targets]),
        ("Engine", [engine(t) for t in targets]),
        (
            "Model, format",
            [
                f"{t['plan']['model']['name']}, {t['plan']['model']['weights_format']}"
                for t in targets
            ],
        ),
        ("Context, tokens", [f"{t['plan']['model']['context']:,}" for t in targets]),
        ("Cache, tokens", [f"{cache_tokens(t):,}" for t in targets]),
        ("Requests at once", [f"{t['plan']['throughput']['concurrency']:,}" for t in targets]),
    ]
    for key, label, unit in SPEEDS[:3]:
        cells = [str(span(t["plan"]["throughput"][key])) for t in targets]
        rows.append((f"{label}, {unit}", cells))
    loads = [span(t["plan"]["throughput"]["load_s"]) for t in targets]
    rows += [
        (SPEEDS[3][1], [durations(found) for found in loads]),
        ("Host memory needed", [_ram(t) for t in targets]),
        ("RAM disk", [_ram_disk(t) for t in targets]),
        ("Disk needed", [human(t["plan"]["disk"]["required_bytes"]) for t in targets]),
        ("Power", [_kw(t) for t in targets]),
        ("Price", [price(t) for t in targets]),
        ("Cost of an hour", [hourly(t) for t in targets]),
        (
            "Cost of a million output tokens",
            [spread(span(t["cost"]["usd_per_million_output_tokens"])) for t in targets],
        ),
        ("Cheaper than the API", [_from(t) for t in targets]),
    ]
    return [(label, [clean(cell) for cell in cells]) for label, cells in rows]


def cache_tokens(target: Target) -> int:
    """Tokens that the cache holds, all instances together."""
    plan = target["plan"]
    return int(plan["memory"]["kv_tokens_max"]) * max(1, len(plan["instances"]))


def memory(target: Target) -> list[Bar]:
    """Share out the memory of each GPU, like ones together, and that of the host, in bytes."""
    plan, facts = target["plan"], target["facts"]
    found = plan["memory"]
    bars = []
    used = {index for row in plan["instances"] for index in row["gpus"]}
    if found["weights_bytes_per_gpu"] is not None:
        groups: dict[tuple[int, bool], list[int]] = {}
        for place, gpu in enumerate(facts.get("gpus") or ()):
            size = int(gpu.get("memory_bytes") or gpu.get("memory_total_bytes") or 0)
            index = int(gpu.get("index", place))
            groups.setdefault((size, index in used), []).append(index)
        bars += [_gpu(found, size, numbers, mine) for (size, mine), numbers in groups.items()]
    return [*bars, _host(plan)]


def _gpu(found: Mapping[str, Any], size: int, numbers: Sequence[int], mine: bool) -> Bar:  # noqa: FBT001
    label = f"GPU {_numbers(numbers)}" + (", each" if len(numbers) > 1 else "")
    if not mine:
        return Bar(f"{label}, not used", size, (Segment("free", "Free", size),))
    parts = [
        Segment("weights", "Weights", found["weights_bytes_per_gpu"]),
        Segment("cache", "Cache of conversations", max(0, found["kv_available_bytes_per_gpu"])),
        Segment("overhead", "Engine's own", found["overhead_bytes_per_gpu"] or 0),
    ]
    return Bar(label, size, _filled(parts, size))


def _host(plan: Mapping[str, Any]) -> Bar:
    found, ram_disk = plan["memory"], plan["ram_disk"]
    needed = found["host_ram_required_bytes"]
    parts = [
        Segment(_kind(row), clean(row["name"]), int(row["bytes"]))
        for row in found.get("host_parts") or ()
    ]
    if not parts and found["weights_bytes_per_gpu"] is None:
        parts = [
            Segment("weights", "Weights", found["weights_bytes_total"]),
            Segment("cache", "Cache of conversations", found.get("kv_available_bytes") or 0),
        ]
    if ram_disk["enabled"] and not any(part.kind == "ramdisk" for part in parts):
        parts.append(Segment("ramdisk", "RAM disk", ram_disk["size_bytes"]))
    rest = needed - sum(part.size for part in parts)
    if rest > 0:
        parts.append(Segment("overhead", "Engine and system", rest))
    total = found["host_ram_available_bytes"]
    return Bar("Host memory", total, _filled(parts, total))


def _kind(row: Mapping[str, Any]) -> str:
    return str(row["kind"]) if row.get("kind") in _KINDS else "overhead"


def _filled(parts: Sequence[Segment], total: int) -> tuple[Segment, ...]:
    free = total - sum(part.size for part in parts)
    shown = [part for part in parts if part.size > 0]
    return (*shown, Segment("free", "Free", free)) if free > 0 else tuple(shown)


def capacity(target: Target) -> list[tuple[int, int]]:
    """Give how many requests the cache holds at once for each length of context, in tokens.

    Lengths double up to the longest that the model was made for.
    """
    plan = target["plan"]
    copies = max(1, len(plan["instances"])) * int(plan["parallel"]["data"])
    tokens = cache_tokens(target) // copies
    most = int(plan["model"]["context_max"])
    lengths = [_LEAST_CONTEXT << n for n in range(32) if _LEAST_CONTEXT << n < most]
    return [
        (length, copies * (tokens // length)) for length in [*lengths, most] if tokens >= length
    ]


def hourly(target: Target) -> str:
    """Give the cost of an hour, and what it leaves out."""
    found = target["cost"]
    left = f", without {' and '.join(found['usd_per_hour_excludes'])}"
    return money(found["usd_per_hour"]) + (left if found["usd_per_hour_excludes"] else "")


def price(target: Target) -> str:
    """Give the price as it was quoted."""
    quoted = target["facts"].get("price") or {}
    if quoted.get("purchase_usd") is not None:
        return f"{money(quoted['purchase_usd'])} to buy"
    if quoted.get("hourly_usd") is not None:
        return f"{money(quoted['hourly_usd'])} an hour"
    return UNKNOWN


def money_sentences(target: Target) -> list[str]:
    """Say what the tokens cost, and from where on self-hosting loses."""
    found = target["cost"]
    lines = []
    each = span(found["usd_per_million_output_tokens"])
    use = share(found["utilisation"])
    if each.expected is not None:
        lines.append(
            f"At {use} use a million output tokens cost {spread(each)}, the "
            f"{found['input_tokens_per_output_token']:g} million input tokens with them included."
        )
    lines += [
        _against(row, use, target["plan"]["throughput"]["concurrency"])
        for row in found["break_even"][:1]
    ]
    if not lines:
        lines.append("What a token costs is not known.")
    if found["output_tok_s_at_full_use"]["expected"] is not None:
        lines.append(_load(target))
    rent = found["usual_rent_usd_per_hour"]
    if found["usd_per_hour"] is None and rent is not None:
        most = found["break_even"][0]["usd_per_hour_at_most"] if found["break_even"] else None
        word = "" if most is None else ", more than that" if rent > most else ", less than that"
        lines.append(
            f"Such GPUs usually rent for {money(rent)} an hour{word} "
            f"({found['usual_rent_source']})."
        )
    cards = found["usual_cards_usd"]
    if found["usd_per_hour"] is None and cards is not None:
        lines.append(
            f"Such cards alone were seen for {money(cards['low'])} to {money(cards['high'])} "
            f"({cards['source']})."
        )
    lines += [_sentence(f"Unknown: {text}") for text in found["unknown"]]
    return [clean(line) for line in lines]


def _load(target: Target) -> str:
    few, many = running(target), target["plan"]["throughput"]["concurrency"]
    if few < many:
        return (
            f"All this with {few} requests running at once: the cache holds no more of that "
            "length; shorter ones make a token cheaper."
        )
    return f"All this with {many} requests at once; more at once make a token cheaper."


def money_short(target: Target) -> str:
    """Say the same for the verdict: the cost beside the API's price, and which is less."""
    found = target["cost"]
    each = found["usd_per_million_output_tokens"]["expected"]
    if each is None or not found["break_even"]:
        return money_sentences(target)[0]
    row = found["break_even"][0]
    use = share(found["utilisation"])
    loses = (
        f"self-hosting loses below {share(row['utilisation'])} use"
        if row["utilisation"]
        else "self-hosting loses at any use"
    )
    return (
        f"A million output tokens cost {money(each)} at {use} use, by the API of {row['api']} "
        f"{money(row['api_usd_per_million_output_tokens'])}: {loses}."
    )


def _against(row: Mapping[str, Any], use: str, many: int) -> str:
    asks = (
        f"The API of {row['api']} asks {money(row['api_usd_per_million_output_tokens'])} for a "
        "million output tokens with their input"
    )
    if row["usd_per_hour_at_most"] is None:
        return f"{asks}; whether self-hosting pays is not known without a speed."
    if row["cheaper"] is None:
        return (
            f"{asks}: at {use} use self-hosting loses unless an hour costs less than "
            f"{money(row['usd_per_hour_at_most'])}, everything included."
        )
    if row["utilisation"] is None:
        return (
            f"{asks}. Self-hosting loses at any use: with {many} requests at once at all hours it "
            f"would still cost {figure(row['cost_over_api_at_full_use'])} times as much."
        )
    daily = figure(row["output_tokens_per_day"] / 1e6)
    wins = "is cheaper" if row["cheaper"] == "self-hosting" else "loses"
    return (
        f"{asks}. Self-hosting loses below {share(row['utilisation'])} use ({daily} million output "
        f"tokens a day); at the stated {use} it {wins}."
    )


def blockers(targets: Iterable[Target]) -> list[tuple[str, Mapping[str, Any]]]:
    """Give every blocker once, with the names of the targets that it blocks."""
    held: dict[tuple[str, ...], tuple[list[str], Mapping[str, Any]]] = {}
    for target in targets:
        for row in of_severity(target, "blocker"):
            key = tuple(clean(row[part]) for part in ("id", "title", "observed", "required", "fix"))
            held.setdefault(key, ([], row))[0].append(clean(target["name"]))
    return [(", ".join(names), row) for names, row in held.values()]


def mending(row: Mapping[str, Any]) -> str:
    """Say what mending a finding costs, as far as that is known."""
    cost, basis = row.get("cost_usd"), row.get("cost_basis")
    if cost is None:
        return "not known: nothing in the catalogue has a price for it"
    if cost == 0:
        return "work, nothing to buy"
    return f"about {money(cost)}: {clean(basis)}" if basis else money(cost)


def assumptions(targets: Sequence[Target]) -> list[tuple[str, Mapping[str, str]]]:
    """Give every assumption once, with the names of the targets that it holds for."""
    held: dict[tuple[str, str, str], list[str]] = {}
    for target in targets:
        for row in target["assumptions"]:
            key = (clean(row["what"]), clean(row["value"]), clean(row["source"]))
            held.setdefault(key, []).append(target["name"])
    everybody = len(targets)
    return [
        (
            "all" if len(set(names)) == everybody else ", ".join(map(clean, dict.fromkeys(names))),
            {"what": what, "value": value, "source": source},
        )
        for (what, value, source), names in held.items()
    ]


def sources(targets: Iterable[Target]) -> list[str]:
    """Give the sources of the rules that found something, each once."""
    found = [
        clean(row["source"]) for t in targets for row in t["findings"] if row["severity"] != "pass"
    ]
    return list(dict.fromkeys(found))


def _magnitude(value: float) -> int:
    return int(f"{abs(value):.2e}".partition("e")[2])


def _pace(speed: Span) -> str:
    if speed.low is None or speed.high is None:
        return f"{figure(speed.expected)} tokens/s"
    return f"{figure(speed.expected)} tokens/s ({figure(speed.low)} to {figure(speed.high)})"


def _sentence(text: object) -> str:
    said = clean(text)
    return said if said.endswith((".", "!", "?")) else said + "."


def _numbers(numbers: Sequence[int]) -> str:
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(str(number) for number in numbers)


def durations(found: Span) -> str:
    """Give a range of times."""
    if found.expected is None or found.low is None or found.high is None:
        return duration(found.expected)
    return f"{duration(found.expected)} ({duration(found.low)} to {duration(found.high)})"


def _ram(target: Target) -> str:
    found = target["plan"]["memory"]
    available = human(found["host_ram_available_bytes"])
    return f"{human(found['host_ram_required_bytes'])} of {available}"


def _ram_disk(target: Target) -> str:
    found = target["plan"]["ram_disk"]
    return human(found["size_bytes"]) if found["enabled"] else "no"


def _kw(target: Target) -> str:
    power = target["cost"]["power_kw"]
    return UNKNOWN if power is None else f"{power:.1f} kW"


def spread(found: Span) -> str:
    """Give a range of dollars."""
    if found.expected is None:
        return UNKNOWN
    if found.low is None or found.high is None:
        return money(found.expected)
    return f"{money(found.expected)} ({money(found.low)} to {money(found.high)})"


def _from(target: Target) -> str:
    rows = target["cost"]["break_even"]
    if not rows or rows[0]["cheaper"] is None:
        return UNKNOWN
    return f"from {share(rows[0]['utilisation'])} use" if rows[0]["utilisation"] else "never"
