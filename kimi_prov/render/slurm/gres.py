"""Generic resources as SLURM prints them of a node, and as a job asks for them.

`scontrol show node` and `sinfo` add sockets and indexes, `gpu:h200:8(S:0-1)`, and accounting writes
`gres/gpu:h200=8`: sbatch takes none of these.

Decides: jobs for a SLURM cluster (the GPUs that a job asks for).
Held by: tests/unit/render/test_slurm_gres.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"\A(?:Gres|GresUsed|CfgTRES|TresPerNode|--gres)\s*[=:]\s*", re.I)
_DETAIL = re.compile(r"\([^()]*\)")
_ABSENT = ("", "(null)", "n/a", "none", "null")
_PREFIX = re.compile(r"\Agres[/:]", re.I)
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


def read_gres(text: str) -> Gres:
    """Read what somebody copied from SLURM, or wrote for sbatch."""
    text = _LABEL.sub("", text.strip())
    if text.lower() in _ABSENT:
        return Gres()
    entries = [_clean_entry(part) for part in _DETAIL.sub("", text).split(",") if part.strip()]
    kept = [entry for entry in entries if entry.split(":")[0].lower() not in _SHARES]
    cards = [entry.split(":") for entry in kept if entry.split(":")[0].lower() == "gpu"]
    return Gres(
        ",".join(kept) if cards else "",
        sum(_count_cards(words) for words in cards),
        ",".join(_name_kind(words) for words in cards if _name_kind(words)),
        slices=any(_SLICE.search(_name_kind(words)) for words in cards),
    )


def _clean_entry(text: str) -> str:
    return _PREFIX.sub("", text.strip()).replace("=", ":")


def _count_cards(words: list[str]) -> int:
    """Return the number of an entry `gpu[:TYPE][:N]`; without one SLURM takes 1."""
    last = words[-1].strip()
    return int(last) if len(words) > 1 and last.isdigit() else 1


def _name_kind(words: list[str]) -> str:
    return ":".join(word for word in words[1:] if not word.strip().isdigit())
