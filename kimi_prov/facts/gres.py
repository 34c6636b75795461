"""Generic resources as SLURM prints them of a node, and as a job asks for them.

`scontrol show node` and `sinfo` add sockets and indexes, `gpu:h200:8(S:0-1)`, or a type that is not
known, `gpu:(null):8(IDX:0-7)`; accounting writes `cpu=104,mem=2T,gres/gpu=8,gres/gpu:h200=8`:
sbatch takes none of these.

Decides: jobs for a SLURM cluster (the GPUs that a job asks for).
Held by: tests/unit/render/test_slurm_gres.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# What lists GPUs, in a line with other columns: a node's name before it, a partition's, memory.
_WITH_GPUS = re.compile(r"(?:\A|[=,/])gpu(?=[:=,(]|\Z)|\A--gpus", re.I)
_COLUMNS = re.compile(r"[\s|]+")
_LABEL = re.compile(
    r"\A(?:Gres|GresUsed|CfgTRES|AllocTRES|TRES|TresPerNode|--gres)\s*[=:]\s*", re.I
)
_OPTION = re.compile(r"\A--gpus(?:-per-node)?=", re.I)
_DETAIL = re.compile(r"\([^()]*\)")
_NO_TYPE = re.compile(r":\(null\)", re.I)
_ABSENT = ("", "(null)", "n/a", "none", "null")
_PREFIX = re.compile(r"\Agres[/:]", re.I)
_NOT_COUNTED = re.compile(r":no_consume\b", re.I)
# Other ways to hand out the same cards: a job asks for cards or for these.
_SHARES = ("shard", "mps")
# Of one card a slice: 1g.18gb, a100_3g.20gb, mig-1g.10gb.
_SLICE = re.compile(r"(?:\A|[^a-z0-9])\d+[gc]\.\d+gb|\bmig\b", re.I)


@dataclass(frozen=True)
class Gres:
    """What a job asks for of each node.

    `request`: for `sbatch --gres`; empty where the node has no GPUs. `gpus`: how many cards.
    `kind`: the site's own name for them, empty where it gives none. `slices`: they are parts of
    cards.
    """

    request: str = ""
    gpus: int = 0
    kind: str = ""
    slices: bool = False


def find_gres(text: str) -> str:
    """Return the column of a line that lists generic resources; all of it where none does."""
    text = re.sub(r"\s*([=,])\s*", r"\1", text.strip())
    found = [column for column in _COLUMNS.split(text) if _WITH_GPUS.search(column)]
    # A partition may be called gpu: what has a type or a count counts.
    return next((column for column in found if column.lower() != "gpu"), (found or [text])[0])


def read_gres(text: str) -> Gres:
    """Read what somebody copied from SLURM, or wrote for sbatch."""
    text = _OPTION.sub("gpu:", _LABEL.sub("", find_gres(text)))
    if text.lower() in _ABSENT:
        return Gres()
    text = _NO_TYPE.sub("", text)
    bare = _DETAIL.sub("", text)
    entries = [part.strip() for part in bare.split(",") if part.strip()]
    if any(_PREFIX.match(part) for part in entries):
        entries = _select_accounted(entries)
    elif bare != text:
        # SLURM prints a count with each: another word is the column before it.
        entries = [part for part in entries if ":" in part]
    kept = [
        part for part in map(_clean_entry, entries) if part.split(":")[0].lower() not in _SHARES
    ]
    cards = [entry.split(":") for entry in kept if entry.split(":")[0].lower() == "gpu"]
    return Gres(
        ",".join(kept) if cards else "",
        sum(_count_cards(words) for words in cards),
        ",".join(_name_kind(words) for words in cards if _name_kind(words)),
        slices=any(_SLICE.search(_name_kind(words)) for words in cards),
    )


def _select_accounted(entries: list[str]) -> list[str]:
    """Return the generic resources of a list that has processors and memory too.

    GPUs are in it by kind, and once more all together: those of a kind count.
    """
    kept = [part for part in entries if _PREFIX.match(part)]
    typed = [part for part in kept if re.match(r"gres[/:]gpu:[^=]*=", part, re.I)]
    return [part for part in kept if not (typed and re.match(r"gres[/:]gpu=", part, re.I))]


def _clean_entry(text: str) -> str:
    return _NOT_COUNTED.sub("", _PREFIX.sub("", text).replace("=", ":"))


def _count_cards(words: list[str]) -> int:
    """Return the number of an entry `gpu[:TYPE][:N]`; without one SLURM takes 1."""
    last = words[-1].strip()
    return int(last) if len(words) > 1 and last.isdigit() else 1


def _name_kind(words: list[str]) -> str:
    return ":".join(word for word in words[1:] if not word.strip().isdigit())
