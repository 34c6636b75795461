"""Find a row by the names that people and machines use for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

from kimi_prov.contract.addresses import HUB_REPOSITORY, HUB_REVISION, PLAIN_NAME
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_T = TypeVar("_T")


@dataclass(frozen=True)
class TextPattern:
    """The pattern of a text of the catalogue that becomes part of a path or an address."""

    words: str
    pattern: re.Pattern[str]


PathName = Annotated[str, TextPattern("a plain name (letters, digits, . _ + -)", PLAIN_NAME)]
HubName = Annotated[str, TextPattern("a repository of the hub (OWNER/NAME)", HUB_REPOSITORY)]
Revision = Annotated[str, TextPattern("a revision (letters, digits, . _ - /)", HUB_REVISION)]

_MAKERS = re.compile(r"\b(nvidia|amd|intel|geforce|instinct|tesla|radeon|ryzen)\b")
_IGNORED_WORDS = re.compile(r"\((r|tm|c)\)|®|™|@.*$|\b\d+-cores?\b|\b(cpu|processor)\b")
_GENERATION = re.compile(r" (?=v\d+$)")
_NUMBER = re.compile(r"[a-z]*\d[a-z0-9]*")
_MAX_NUMBERS = 6
# How much of a likeness the model numbers are, the least that is proposed, and how far behind the
# best one that may be.
_NUMBERS_WEIGHT, _MIN_LIKENESS, _MAX_DIFFERENCE = 0.7, 0.55, 0.12
_MIN_KEY_LIKENESS = 0.72
_MEMORY_SIZE = re.compile(r"\d+[gt]i?b?")
_MIN_TYPED = 4
# The generation in a name of Kimi: k2.5, K2p5, k25, kimi_k2_5, kimi2.6; k2-0905 is of k2.
_VERSION = re.compile(r"\bk(?:imi)?[-_ ]?k?(\d)(?:[._p](\d)(?!\d)|(\d)(?!\d))?(?!\d)")
_OTHER_FAMILY = re.compile(r"\b(glm|qwen|deepseek)[-_ ]?([vr]?\d(?:\.\d)?)")
# How the name of a repository says its format.
_FORMATS = {
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "w4a16": "int4",
    "int4": "int4",
    "awq": "int4",
    "gptq": "int4",
    "4bit": "int4",
    "fp8": "fp8",
    "bf16": "bf16",
}
# Forms that no engine of ours loads.
_FOREIGN = {
    "gguf": "GGUF is for llama.cpp and ik_llama.cpp, which this program does not provision",
    "mlx": "MLX is for Apple's processors, which this program does not provision",
    "exl2": "EXL2 is for ExLlama, which this program does not provision",
    "exl3": "EXL3 is for ExLlama, which this program does not provision",
}
_MAX_LENGTH = 200
_TIER = re.compile(r"\b(platinum|gold|silver|bronze)\b")


def normalize_name(text: str) -> str:
    """Return a name without makers, trademarks, clock and punctuation."""
    # Cut and on one line: names are short, which limits the time of the patterns.
    low = _MAKERS.sub(" ", _IGNORED_WORDS.sub(" ", " ".join(text[:_MAX_LENGTH].lower().split())))
    return re.sub(r"[^a-z0-9.+]", "", low)


def normalize_model(text: str) -> str:
    """Return the last part of a repository's name or address, as the catalogue writes names.

    Raises UserError for a revision, which belongs to the source of the weights.
    """
    name = " ".join(text[:_MAX_LENGTH].split()).replace(" ", "-").rstrip("/")
    name, _, revision = name.partition("@")
    if revision not in ("", "main"):
        raise UserError(
            f"the model's name {format_value(text)} carries a revision",
            fix=f"name the model alone, and in the inventory  "
            f"kimi_weights_source: hf://{name.removeprefix('hf://')}@{revision}",
        )
    return name.rsplit("/", 1)[-1].lower().removesuffix(":latest")


def is_cut(name: str) -> bool:
    """Whether a name ends in dots: nvidia-smi's table cuts what is longer than its column."""
    return name.rstrip().endswith(("...", "\u2026"))


@cache
def list_name_forms(name: str) -> tuple[str, ...]:
    """Return the names of a processor: in full, without its tier, only its number."""
    low = _GENERATION.sub("", name.lower())
    return (
        normalize_name(low),
        normalize_name(_TIER.sub(" ", low)),
        normalize_name(low.rsplit(" ", 1)[-1]),
    )


def index_rows(rows: Iterable[_T], keys: Callable[[_T], Iterable[str]]) -> dict[str, _T]:
    """Map every key to its row; a key of two rows maps to the first."""
    index: dict[str, _T] = {}
    for row in rows:
        for key in keys(row):
            index.setdefault(key, row)
    return index


def refuse_unknown(kind: str, name: str, known: Mapping[str, Iterable[str]]) -> UserError:
    """Return the error for an unknown name, with the nearest ones. `known`: names and aliases."""
    called = _index_aliases(known)
    word = name.rsplit("/", 1)[-1]
    hits = _find_same_generation(word, called) if kind == "model" else None
    if hits is None:
        hits = find_nearest(word, called)
    near = list(dict.fromkeys(called[hit] for hit in hits))[:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "none has a name like it"
    return UserError(
        f"unknown {kind} {format_value(name)}; {hint}", fix=f"choose one of: {', '.join(known)}"
    )


def _find_family(name: str) -> tuple[str, ...] | None:
    """Return the generation that a name says: of Kimi, or of another maker's family."""
    said = _VERSION.search(name)
    if said:
        return said[1], said[2] or said[3]
    other = _OTHER_FAMILY.search(name)
    return other.groups() if other else None


def _find_same_generation(name: str, called: Mapping[str, str]) -> list[str] | None:
    """Return the models of the generation that a name says, the nearest first: K2.7 is no K2.6.

    None where the name says none.
    """
    said = _find_family(name.lower())
    if said is None:
        return None
    same = [
        known
        for known, row in called.items()
        if known == row and _find_family(known.lower()) == said
    ]
    near = [called[hit] for hit in find_nearest(name, called) if called[hit] in same]
    return near or sorted(same, key=lambda known: -_compare_texts(name.lower(), known.lower()))


def refuse_unserved(name: str, reason: str, instead: str) -> UserError:
    """Return the error for a model that exists and is not served yet, with another one's name."""
    return UserError(
        f"{name} is known and not yet served: {reason}",
        fix=f"kimi_model: {instead}; or a row of your own (docs/contributing/add-a-model.md)",
    )


def refuse_repository(name: str, model: str) -> UserError:
    """Return the error for a repository that the catalogue lacks, of a model that it has."""
    low = name.lower()
    foreign = next((text for key, text in _FOREIGN.items() if key in low), None)
    problem = (
        f"unknown repository {format_value(name)}; its name is that of {model} in another form"
    )
    if foreign is not None:
        return UserError(
            f"{problem}: {foreign}",
            fix=f"--model {model}; `kimi-prov catalog models {model}` lists its published formats",
        )
    said = next((word for key, word in _FORMATS.items() if key in low), "FORMAT")
    return UserError(
        problem,
        fix=f"--model {model} --weights-format {said}; in the inventory  kimi_model: {model},  "
        f"kimi_weights_format: {said},  kimi_weights_source: hf://{name[:_MAX_LENGTH]}@REVISION",
    )


def refuse_unknown_part(
    kind: str, name: str, known: Mapping[str, Iterable[str]], listing: str
) -> UserError:
    """Return the same for a processor, a GPU or a server, whose names are too many to list.

    `listing` is the kind of `kimi-prov catalog` that shows them all.
    """
    called = _index_aliases(known)
    # A server's number says how large it is: another one may be what was meant.
    hits = find_nearest_parts(name, called, same_number=kind != "system")
    near = list(dict.fromkeys(called[hit] for hit in hits))[:3]
    hint = f"; did you mean {' or '.join(near)}?" if near else "; none has a name like it"
    return UserError(
        f"unknown {kind} {format_value(name)}{hint}",
        fix=f"`kimi-prov catalog {listing}` lists those that are known",
    )


def _index_aliases(known: Mapping[str, Iterable[str]]) -> dict[str, str]:
    by_alias = {alias: row for row, aliases in known.items() for alias in aliases}
    return {**by_alias, **{row: row for row in known}}


def find_nearest_parts(name: str, names: Iterable[str], *, same_number: bool) -> list[str]:
    """Return the names of parts like this one, the nearest first: the model number decides.

    `same_number`: only parts whose number may be meant, never those of another generation.
    """
    target = name[:_MAX_LENGTH].lower()
    scored = [
        (_measure_likeness(target, known.lower()), known)
        for known in names
        if not same_number or _has_shared_number(target, known.lower())
    ]
    least = max((like for like, _ in scored), default=0.0) - _MAX_DIFFERENCE
    return [
        name
        for like, name in sorted(scored, key=_rank_candidate)
        if like >= max(least, _MIN_LIKENESS)
    ]


def _rank_candidate(scored: tuple[float, str]) -> tuple[float, str]:
    return -scored[0], scored[1]


def _measure_likeness(target: str, known: str) -> float:
    words = _compare_texts(normalize_name(target), normalize_name(known))
    numbers = _find_numbers(target)
    theirs = _NUMBER.findall(known)
    if not numbers or not theirs:
        return words
    like = [(max(_compare_texts(one, other) for other in theirs), len(one)) for one in numbers]
    all_of_them = sum(ratio * size for ratio, size in like) / sum(size for _, size in like)
    # One of the names may hold only the memory's size.
    best = max(ratio for ratio, size in like if size == max(size for _, size in like) or size > 3)
    share = (all_of_them + best) / 2
    return _NUMBERS_WEIGHT * share + (1 - _NUMBERS_WEIGHT) * words


def _has_shared_number(target: str, known: str) -> bool:
    """Whether a model number of one may be meant by the other: H200 for H201, never for GB10."""
    numbers = [n for n in _find_numbers(target) if not _MEMORY_SIZE.fullmatch(n)]
    theirs = _NUMBER.findall(known)
    if not numbers or not theirs:
        return True
    return any(_is_one_number(one, other) for one in numbers for other in theirs)


def _is_one_number(one: str, other: str) -> bool:
    """Whether two model numbers are equal but for a last letter or one wrong digit."""
    short, long = sorted((one, other), key=len)
    if long.startswith(short) and (long == short or long[len(short) :].isalpha()):
        return True
    wrong = [(a, b) for a, b in zip(one, other, strict=False) if a != b]
    return (
        len(one) == len(other) >= _MIN_TYPED
        and len(wrong) == 1
        and all(char.isdigit() for pair in wrong for char in pair)
    )


def _find_numbers(text: str) -> list[str]:
    return _NUMBER.findall(_IGNORED_WORDS.sub(" ", text))[:_MAX_NUMBERS]


def _compare_texts(one: str, other: str) -> float:
    import difflib  # noqa: PLC0415  (only a refusal pays for it)

    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def find_nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that look like this one, the nearest first."""
    import difflib  # noqa: PLC0415  (only a refusal pays for it)

    by_low = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower()[:100], by_low, n=3, cutoff=_MIN_KEY_LIKENESS)
    return [by_low[key] for key in close]


def format_value(value: object) -> str:
    """Return a value for a message: short, on one line."""
    if isinstance(value, (dict, list, tuple, set)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# A seller's words: a name matches where all of its words stand in the text, and every other word
# of the text repeats what the row says or says nothing about the part. The longest name wins.
_WORD = re.compile(r"[a-z0-9][a-z0-9.+]*")
_TRADEMARKS = re.compile(r"\((?:r|tm|c)\)|®|™|©")
_DIGIT = re.compile(r"\d")
_MAKER_WORDS = frozenset(
    {"nvidia", "amd", "intel", "geforce", "instinct", "tesla", "radeon", "quadro"}
)

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
_SHORT_WORD = 2
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
        "bridge",
        "bridges",
        "each",
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
_BOARD = re.compile(r"\b(\d{1,2}) ?(?:x\b|[- ]?(?:gpus?|way)\b)")
_SIZE_TOLERANCE = 0.1
_POWER = re.compile(r"\b\d{2,4} ?w(?:atts?)?\b")


class GpuWords(NamedTuple):
    """What a text about GPUs says: words, memory of one in GB and GPUs of a board, or None."""

    words: frozenset[str]
    memory_gb: int | None
    boards: int | None


def match_cpu(text: str, rows: Iterable[_T], names: Callable[[_T], Iterable[str]]) -> _T | None:
    """Return the processor that a text names; None where none or more than one could be meant."""
    said = _split_words(_CPU_REMARKS.sub(" ", _normalize_text(text)))

    def is_remark(_row: _T, word: str) -> bool:
        letters = len(word) > _SHORT_WORD and not _DIGIT.search(word)
        return word in _SHORT_REMARKS or (letters and word not in _CPU_KINDS)

    return _match(said, rows, names, is_remark)


def read_cores(text: str) -> int | None:
    """Return how many cores a text about a processor says; None where it does not say."""
    cores = _CORES.search(_normalize_text(text))
    return int(cores[1]) if cores else None


def read_gpu_words(text: str) -> GpuWords:
    """Split what a seller says about GPUs: "HGX H100 8-GPU 80GB SXM5" has three parts."""
    low = _PCIE.sub(" pcie ", _SXM.sub(" sxm ", _normalize_text(text)))
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
    joined = _join_letters(text)
    return _match(said.words, fitting, lambda row: map(_drop_size, names(row)), is_remark) or next(
        (row for row in fitting if joined in map(_join_letters, names(row))), None
    )


def _join_letters(text: str) -> str:
    """Return a name in one word, without a size: a cluster's name for its cards is rtxpro6000."""
    return re.sub(r"[^a-z0-9]", "", _drop_size(text[:_MAX_LENGTH]))


def _match(
    said: frozenset[str],
    rows: Iterable[_T],
    names: Callable[[_T], Iterable[str]],
    is_remark: Callable[[_T, str], bool],
) -> _T | None:
    best: tuple[int, _T] | None = None
    for row in rows:
        for name in names(row):
            words = _split_words(_normalize_text(name))
            if not words or not words <= said or (best and len(words) <= best[0]):
                continue
            if all(is_remark(row, word) for word in said - words):
                best = len(words), row
    return best[1] if best else None


def _drop_size(name: str) -> str:
    return _SIZE.sub(" ", _SXM.sub("sxm", name.lower()))


def _normalize_text(text: str) -> str:
    return " ".join(_TRADEMARKS.sub(" ", text[:_MAX_LENGTH].lower()).split())


def _split_words(text: str) -> frozenset[str]:
    return frozenset(word.rstrip(".") for word in _WORD.findall(text)) - _MAKER_WORDS
