"""The answer in all forms of the report: a table of ranked machines, each with what it lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from kimi_prov.show.report import hosts, ways
from kimi_prov.show.report.verdict import count_running
from kimi_prov.show.text.formats import (
    Cell,
    clean,
    format_figure,
    format_money,
    format_sentence,
    format_years,
    mark_best,
)
from kimi_prov.sizing.curve import CHAT_TOK_S, SLOW_TOK_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kimi_prov.contract.documents.check import Check, CheckedLoad, LoadFigure, RankedTarget
    from kimi_prov.contract.documents.check import CheckedTarget as Target
    from kimi_prov.contract.documents.ranges import Range

    Pick = Callable[[Iterable[float]], float]

# A machine's pace in words for readers who do not count tokens; then the words for a column.
PACE = {
    None: "Speed not known",
    "chat": "Fast enough to chat",
    "slow": "Slow to chat",
    "batch": "Too slow to chat",
    "blocked": "Blocked",
}
SHORT_PACE = {
    None: "unknown",
    "chat": "chat",
    "slow": "slow chat",
    "batch": "batch only",
    "blocked": "blocked",
}
_PACE_MEANS = (
    f"decode of one request alone and of each of all at once: at {CHAT_TOK_S:g} tokens a second or "
    f"more people chat, at {SLOW_TOK_S:g} to {CHAT_TOK_S:g} they wait for it, below {SLOW_TOK_S:g} "
    "is too slow to chat, for batches that nobody waits for"
)
# The terms of the figures in plain words.
WORDS = (
    ("Decode", "writing the answer, token by token; a token is about three quarters of a word"),
    ("Prefill", "reading the question before the answer begins"),
    ("Time to first token", "how long somebody waits until the answer begins"),
    ("Pace", _PACE_MEANS),
)
_LOAD = (
    ("people", "people"),
    ("users", "requests at once"),
    ("tokens_per_day", "output tokens a day"),
    ("ttft_s", "s to the first token at most"),
    ("tpot_ms", "ms between tokens at most"),
    ("input_tokens", "tokens in each question"),
    ("output_tokens", "tokens in each answer"),
)
# Comes before an amount of money that is in no quote.
RENTED = "~"
_SPEEDS = ("single_tok_s", "decode_tok_s", "aggregate_tok_s")
_OF_THOSE_THAT_RUN = ("decode_tok_s", "ttft_s")


@dataclass(frozen=True)
class Row:
    """A machine's row: `number` from 1, `cells` in the order of the table's heads."""

    number: int
    name: str
    index: int
    pace: str | None
    serves: Literal["yes", "by hand", "no"]
    recommended: bool
    cells: tuple[Cell, ...]
    lacks: str
    words: str
    ways: tuple[str, ...]
    meets: bool


@dataclass(frozen=True)
class Ranking:
    """The table of the answer. `heads` and `kinds` are those of `cells`.

    `rented`: some costs use the usual rent, and are marked.
    """

    heads: tuple[str, ...]
    kinds: tuple[str, ...]
    rows: tuple[Row, ...]
    rented: bool

    @property
    def plain_heads(self) -> list[tuple[str, str]]:
        """Heads without a group, with their kinds."""
        return [pair for pair in zip(self.heads, self.kinds, strict=True) if pair[1] != "speed"]

    @property
    def labels(self) -> list[str]:
        """Heads that stand beside a cell by themselves."""
        pairs = zip(self.heads, self.kinds, strict=True)
        return [f"{head}, tokens/s" if kind == "speed" else head for head, kind in pairs]

    @property
    def speed_heads(self) -> tuple[str, ...]:
        """Heads of the speeds of decode."""
        return self.heads[-len(_SPEEDS) :]


def build_ranking(
    document: Check, dollars: Callable[[float | None], str] = format_money
) -> Ranking:
    """Return the table; `dollars` writes money. Only a target that serves is marked as best."""
    answer, targets = document["answer"], document["targets"]
    places = {target["name"]: place for place, target in enumerate(targets)}
    rows = answer["ranking"]
    columns = _build_columns(rows, [targets[places[row["target"]]] for row in rows], dollars)
    lines = zip(*(column for _, _, column in columns), strict=True)
    return Ranking(
        tuple(head for head, _, _ in columns),
        tuple(kind for _, kind, _ in columns),
        tuple(
            Row(
                number=number,
                name=clean(row["target"]),
                index=places[row["target"]] + 1,
                pace=row["pace"],
                serves="by hand" if row["by_hand"] else "yes" if row["serves"] else "no",
                recommended=row["target"] == answer["recommended"],
                cells=tuple(line),
                lacks="; ".join(map(clean, row["lacks"])) or "nothing",
                meets=row["meets"],
                ways=(
                    *ways.describe_ways(targets[places[row["target"]]]),
                    *ways.describe_other_engines(targets[places[row["target"]]]),
                ),
                words=_describe_paces(row, of_one_too=document["load"] is None),
            )
            for number, (row, line) in enumerate(zip(rows, lines, strict=True), 1)
        ),
        any(row.get("priced_by") == "usual rent" for row in rows),
    )


def _describe_paces(row: RankedTarget, *, of_one_too: bool) -> str:
    """Write the pace; without a load also that of one person alone, where it differs."""
    alone = row.get("pace_alone")
    if not of_one_too or alone is None or alone == row["pace"]:
        return PACE[row["pace"]]
    return f"{PACE[alone]} for one; {PACE[row['pace']].lower()} for all"


def list_meeting(document: Check) -> list[str]:
    """Name the targets that are fast enough and carry the load."""
    return [row["target"] for row in document["answer"]["ranking"] if row["meets"]]


def map_places(document: Check) -> dict[str, int]:
    """Return each target's rank by name."""
    rows = document["answer"]["ranking"]
    return {row["target"]: number for number, row in enumerate(rows, 1)}


def sort_targets(document: Check) -> list[Target]:
    """Return the targets in the order of the ranking."""
    places = map_places(document)
    return sorted(document["targets"], key=lambda target: places[target["name"]])


def get_answer(document: Check) -> str:
    """Return the answer's sentence."""
    return format_sentence(document["answer"]["sentence"])


def describe_load(load: CheckedLoad) -> str:
    """Describe the load and which of its values were assumed."""
    parts = []
    for key, unit in _LOAD:
        found = cast("LoadFigure | None", load.get(key))
        if found and found["value"] is not None:
            parts.append(f"{found['value']:,.12g} {unit}" + (" (assumed)" * bool(found["assumed"])))
    return ", ".join(parts)


def describe_planned(targets: Sequence[Target]) -> str:
    """Return the planned requests at once as text: a number if all have the same, else N."""
    many = {target["plan"]["throughput"]["concurrency"] for target in targets}
    return f"{many.pop():,}" if len(many) == 1 else "N"


def explain_n(targets: Sequence[Target]) -> str:
    """Explain N if machines differ in it."""
    return "N: the requests at once planned for each machine. " * (describe_planned(targets) == "N")


def explain_columns(document: Check) -> str:
    """Explain which columns are of all machines and which of one, if several may be needed."""
    if not document["load"]:
        return ""
    return "An hour and the years: of all machines that the load takes; speeds: of one of them. "


def describe_waiting(target: Target) -> str:
    """Write how many of the planned requests run, if the others wait."""
    few = count_running(target)
    return f" ({few:,} run)" if few < target["plan"]["throughput"]["concurrency"] else ""


def mark_figures(
    key: str,
    texts: Iterable[str],
    values: Sequence[float | None],
    targets: Sequence[Target],
) -> tuple[list[str], list[float | None]]:
    """Mark figures of only the running requests; such a figure is never marked as best."""
    marks = [describe_waiting(target) if key in _OF_THOSE_THAT_RUN else "" for target in targets]
    return (
        [text + mark for text, mark in zip(texts, marks, strict=True)],
        [None if mark else value for value, mark in zip(values, marks, strict=True)],
    )


def _build_columns(
    rows: Sequence[RankedTarget],
    targets: Sequence[Target],
    dollars: Callable[[float | None], str],
) -> list[tuple[str, str, list[Cell]]]:
    """Return each column's head, kind and cells, one for each row."""
    meets = [row["meets"] for row in rows]

    def column(
        head: str, kind: str, texts: list[str], values: Sequence[float | None], pick: Pick
    ) -> tuple[str, str, list[Cell]]:
        mine = [value if fits else None for value, fits in zip(values, meets, strict=True)]
        return head, kind, mark_best(texts, mine, pick)

    def costs(head: str, values: Sequence[float | None]) -> tuple[str, str, list[Cell]]:
        marks = [RENTED * (row.get("priced_by") == "usual rent") for row in rows]
        texts = [
            (mark if value is not None else "") + dollars(value)
            for mark, value in zip(marks, values, strict=True)
        ]
        return column(head, "money", texts, values, min)

    per_million = [row["usd_per_million_output_tokens"]["expected"] for row in rows]
    span = {row["years"] for row in rows if row["years"] is not None}
    total = f"Over {format_years(span.pop())}" if len(span) == 1 else "Over the years"
    columns = [
        costs("An hour", [row["usd_per_hour"] for row in rows]),
        costs(total, [row["usd_total"] for row in rows]),
        costs("A million tokens", per_million),
    ]
    many = describe_planned(targets)
    heads = ("one alone", f"each of {many}", f"all {many}")
    for key, head in zip(_SPEEDS, heads, strict=True):
        values = [_read_speed(target, key) for target in targets]
        texts, values = mark_figures(key, map(format_figure, values), values, targets)
        columns.append(column(head, "speed", texts, values, max))
    if any(row["machines"] is not None for row in rows):
        machines = [row["machines"] for row in rows]
        texts = [
            _format_machines(row, hosts.count_target_hosts(t))
            for row, t in zip(rows, targets, strict=True)
        ]
        columns.insert(0, column("Machines", "count", texts, machines, min))
    return columns


def _read_speed(target: Target, key: str) -> float | None:
    return cast("Range", target["plan"]["throughput"].get(key))["expected"]


def _format_machines(row: RankedTarget, together: int) -> str:
    if row["machines"] is None:
        return "none do"
    low, high = row["machines_low"], row["machines_high"]
    groups = f" group{'s' * (row['machines'] != 1)} of {together}" if together > 1 else ""
    many = f"{row['machines']:,}{groups}"
    if low is None or low == high:
        return many
    return f"{many} ({low:,} " + ("or more)" if high is None else f"to {high:,})")
