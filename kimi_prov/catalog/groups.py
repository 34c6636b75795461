"""Published layouts of one model over several hosts. Units are in the names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class GroupRecipe(Row):
    """A layout over `hosts` with `gpus` GPUs each, by ranks, stages and copies of attention.

    `ran`: its source says that it answered; else it was only described. `single_tok_s` and
    similar fields are the source's measurements, in tokens a second. `separate`: other hosts
    compute prompts than answers.
    """

    id: str
    title: str
    models: tuple[str, ...]
    formats: tuple[str, ...]
    engine: str
    gpu: str
    hosts: int
    gpus: int
    tensor: int
    source: str
    confidence: Confidence
    pipeline: int = 1
    data: int = 1
    expert: bool = False
    separate: bool = False
    ran: bool = True
    version: str | None = None
    context: int | None = None
    single_tok_s: float | None = None
    aggregate_tok_s: float | None = None
    concurrency: int | None = None
    note: str | None = None


@dataclass(frozen=True)
class GroupLayout:
    """The layout of a plan over `hosts`: sizes over all of them; `gpu` by the catalogue's name."""

    model: str
    weights_format: str
    engine: str
    gpu: str
    hosts: int
    tensor: int
    pipeline: int = 1
    data: int = 1
    expert: bool = False

    @property
    def text(self) -> str:
        """The sizes in short: "TP8 PP2", "DP16 EP"."""
        return format_sizes(self)


def format_sizes(row: GroupLayout | GroupRecipe) -> str:
    """Write sizes in short, without those of 1: "TP8 PP2"."""
    named = (("TP", row.tensor), ("PP", row.pipeline), ("DP", row.data))
    words = [f"{name}{size}" for name, size in named if size > 1]
    return " ".join([*(words or ["TP1"]), *(["EP"] if row.expert else [])])


def find_proven(rows: Iterable[GroupRecipe], layout: GroupLayout) -> tuple[GroupRecipe, ...]:
    """Return the rows whose source says that exactly this layout answered."""
    return tuple(row for row in rows if row.ran and _is_same_model(row, layout))


def find_nearest(rows: Iterable[GroupRecipe], layout: GroupLayout) -> GroupRecipe | None:
    """Return the row most similar to a layout; None where none is similar.

    Layout and number of hosts weigh most, then model, GPU and format. A layout that was only
    described comes after those that ran.
    """

    def score(row: GroupRecipe) -> tuple[int, bool]:
        shape = (row.tensor, row.pipeline, row.data) == (
            layout.tensor,
            layout.pipeline,
            layout.data,
        )
        common = 4 * (shape and row.hosts == layout.hosts) + 2 * (layout.model in row.models)
        common += (row.gpu == layout.gpu) + (layout.weights_format in row.formats)
        return common, row.ran

    known = [row for row in rows if row.engine == layout.engine and score(row)[0] > 2]
    return max(known, key=score, default=None)


def _is_same_model(row: GroupRecipe, layout: GroupLayout) -> bool:
    return (
        layout.model in row.models
        and layout.weights_format in row.formats
        and (row.engine, row.gpu, row.hosts) == (layout.engine, layout.gpu, layout.hosts)
        and (row.tensor, row.pipeline, row.data) == (layout.tensor, layout.pipeline, layout.data)
        and row.expert == layout.expert
        and not row.separate
    )
