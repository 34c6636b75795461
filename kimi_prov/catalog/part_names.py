"""Find a processor or a GPU by a seller's words: the name among its clock, cores, size and socket.

A name of the catalogue matches where all of its words stand in the text, and every other word of
the text repeats what the row says or says nothing about the part. The longest name wins.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_T = TypeVar("_T")
_MAX_LENGTH = 200
_WORD = re.compile(r"[a-z0-9][a-z0-9.+]*")
_TRADEMARKS = re.compile(r"\((?:r|tm|c)\)|®|™|©")
_NUMBER = re.compile(r"\d")
_MAKERS = frozenset({"nvidia", "amd", "intel", "geforce", "instinct", "tesla", "radeon", "quadro"})

# What offers of processors say beside the name: clock, cores, threads, caches, power, sockets.
_CPU_REMARKS = re.compile(
    r"@.*$"
    r"|\b\d+(?:\.\d+)?(?:/\d+(?:\.\d+)?)* ?g(?:hz)?\b"
    r"|\b\d{1,3} ?c ?/ ?\d{1,4} ?t\b"
    r"|\b\d{1,4}[- ]?(?:cores?|threads?)\b|\b\d{1,3}[ct]\b"
    r"|\b\d+(?:\.\d+)? ?m(?:b|ib)?\b|\b\d+(?:\.\d+)? ?gt/s\b|\b\d{2,4} ?w(?:atts?)?\b"
    r"|\b\d(?:st|nd|rd|th)[- ]gen(?:eration)?\b|\b\d{4} series\b"
    r"|\b(?:lga|fclga|socket)[- ]?\d+\b|\bsp[3-7]\b|\bstr5\b|\bddr\d(?:[- ]\d{4})?\b"
    r"|\bl[23]\b|(?<=xeon )6 (?=\d{4})"
)
_CORES = re.compile(r"\b(\d{1,3})[- ]?(?:cores?\b|c\b)")
# Words that make a processor another one; every other word of letters is a remark.
_CPU_KINDS = frozenset({"max", "pro", "platinum", "gold", "silver", "bronze", "xeon", "epyc"})
_SHORT = 2
_SHORT_REMARKS = frozenset({"ht", "tb", "tm", "up", "to", "of"})

# What offers of GPUs say beside the name. `sxm`, `pcie` and `nvl` tell forms of a GPU apart.
_GPU_REMARKS = frozenset(
    {
        "tensor",
        "core",
        "gpu",
        "gpus",
        "accelerator",
        "accelerators",
        "graphics",
        "card",
        "cards",
        "hgx",
        "dgx",
        "baseboard",
        "board",
        "oam",
        "ai",
        "data",
        "center",
        "datacenter",
        "passive",
        "active",
        "cooled",
        "liquid",
        "air",
        "dual",
        "slot",
        "fhfl",
        "blower",
        "gddr6",
        "gddr6x",
        "gddr7",
        "hbm",
        "hbm2",
        "hbm2e",
        "hbm3",
        "hbm3e",
        "memory",
        "vram",
        "ecc",
        "with",
        "and",
        "of",
        "nvlink",
        "nvswitch",
        "x16",
        "gen4",
        "gen5",
        "edition",
        "generation",
        "pny",
        "asus",
        "msi",
        "gigabyte",
        "supermicro",
        "dell",
        "hpe",
        "lenovo",
        "founders",
        "fe",
        "oem",
        "new",
    }
)
_FORMS = ("sxm", "pcie", "nvl")
_SXM = re.compile(r"\bsxm ?[2-7]\b")
_PCIE = re.compile(r"\bpci[- ]?e(?:xpress)?(?: ?(?:gen ?)?[3-6](?:\.0)?(?: ?x16)?)?\b")
_SIZE = re.compile(r"\b(\d{2,3}) ?(?:gb|gib|g)\b")
_BOARD = re.compile(r"\b(\d{1,2}) ?(?:x\b|[- ]?gpus?\b)")
_SIZE_TOLERANCE = 0.1
_POWER = re.compile(r"\b\d{2,4} ?w(?:atts?)?\b")


class GpuWords(NamedTuple):
    """What a text about GPUs says: words, memory of one in GB and GPUs of a board, or None."""

    words: frozenset[str]
    memory_gb: int | None
    boards: int | None


def match_cpu(text: str, rows: Iterable[_T], names: Callable[[_T], Iterable[str]]) -> _T | None:
    """Return the processor that a text names; None where none or more than one could be meant."""
    said = _split_words(_CPU_REMARKS.sub(" ", _simplify(text)))

    def is_remark(_row: _T, word: str) -> bool:
        letters = len(word) > _SHORT and not _NUMBER.search(word)
        return word in _SHORT_REMARKS or (letters and word not in _CPU_KINDS)

    return _match(said, rows, names, is_remark)


def read_cores(text: str) -> int | None:
    """Return how many cores a text about a processor says; None where it does not say."""
    found = _CORES.search(_simplify(text))
    return int(found[1]) if found else None


def read_gpu_words(text: str) -> GpuWords:
    """Split what a seller says about GPUs: "HGX H100 8-GPU 80GB SXM5" has three parts."""
    low = _PCIE.sub(" pcie ", _SXM.sub(" sxm ", _simplify(text)))
    board, size = _BOARD.search(low), _SIZE.search(low)
    words = _split_words(_POWER.sub(" ", _SIZE.sub(" ", _BOARD.sub(" ", low))))
    count = int(board[1]) if board else 8 if "dgx" in words else None
    return GpuWords(words, int(size[1]) if size else None, count)


def match_gpu(
    text: str,
    rows: Iterable[_T],
    names: Callable[[_T], Iterable[str]],
    sizes: Callable[[_T], int],
    *,
    any_size: bool = False,
) -> _T | None:
    """Return the GPU that a text names; None where it names none, or one of other memory.

    Sizes may differ by a tenth: 192 GB on the package are 180 that one can use.
    """
    said = read_gpu_words(text)

    def is_remark(row: _T, word: str) -> bool:
        if word not in _FORMS:
            return word in _GPU_REMARKS
        own = _split_words(_drop_size(" ".join(names(row))))
        # An NVL is a card for PCIe too.
        return not own & ({"pcie", "nvl"} if word == "sxm" else {"sxm"})

    def fits(row: _T) -> bool:
        size = said.memory_gb
        return any_size or size is None or abs(size - sizes(row)) <= _SIZE_TOLERANCE * sizes(row)

    fitting = [row for row in rows if fits(row)]
    return _match(said.words, fitting, lambda row: map(_drop_size, names(row)), is_remark)


def _match(
    said: frozenset[str],
    rows: Iterable[_T],
    names: Callable[[_T], Iterable[str]],
    is_remark: Callable[[_T, str], bool],
) -> _T | None:
    best: tuple[int, _T] | None = None
    for row in rows:
        for name in names(row):
            words = _split_words(_simplify(name))
            if not words or not words <= said or (best and len(words) <= best[0]):
                continue
            if all(is_remark(row, word) for word in said - words):
                best = len(words), row
    return best[1] if best else None


def _drop_size(name: str) -> str:
    return _SIZE.sub(" ", _SXM.sub("sxm", name.lower()))


def _simplify(text: str) -> str:
    return " ".join(_TRADEMARKS.sub(" ", text[:_MAX_LENGTH].lower()).split())


def _split_words(text: str) -> frozenset[str]:
    return frozenset(word.rstrip(".") for word in _WORD.findall(text)) - _MAKERS
