"""The usage of keys as a table and as CSV."""

from __future__ import annotations

import csv as writer
import io
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.show.text.tables import align_columns

if TYPE_CHECKING:
    from kimi_prov.contract.documents.usage import HostCacheUse, Usage

_NUMBERS = ("requests", "prompt_tokens", "completion_tokens")
_HEADS = {"prompt_tokens": "tokens in", "completion_tokens": "tokens out"}


def format_text(document: Usage) -> str:
    """Write the rows as a table, and below it what was not counted."""
    heads, rows = _build_table(document)
    cells = [[_HEADS.get(head, head) for head in heads], *rows]
    names = len(heads) - len(_NUMBERS) - 1
    lines = align_columns(cells, range(names, len(heads))) if rows else ["nothing was used"]
    for host, found in document["hosts"].items():
        if not found.get("ok"):
            lines.append(clean_text.clean_row(f"{host}: {found['detail']}"))
        if cache := found.get("host_cache"):
            lines.append(f"{clean_text.clean_row(host)}: {_describe_cache(cache)}")
    return "\n".join(lines) + "\n"


def _describe_cache(cache: HostCacheUse) -> str:
    """Say which share of the looked up tokens the cache in host memory had."""
    queried = cache["queried_tokens"]
    if not queried:
        return "the cache in host memory was not asked since the engine's start"
    share = cache["found_tokens"] / queried
    return f"the cache in host memory had {share:.0%} of {queried:,} tokens that it was asked for"


def format_csv(document: Usage) -> str:
    """Write the rows as CSV, with a line of names first."""
    heads, rows = _build_table(document)
    out = io.StringIO()
    writer.writer(out, lineterminator="\n").writerows([heads, *rows])
    return out.getvalue()


def _build_table(document: Usage) -> tuple[list[str], list[list[str]]]:
    first = [] if document["by"] == "key" else [document["by"]]
    heads = [*first, "key", *_NUMBERS, "refused"]
    rows = [
        [
            *(clean_text.clean_row(str(values[name])) for name in heads[:-1]),
            str(sum(row["refused"].values())),
        ]
        for row in document["rows"]
        for values in [dict(row)]
    ]
    return heads, rows
