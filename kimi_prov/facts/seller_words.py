"""Parse the parts of an offer as sellers write them: memory, disks, network cards, systems.

"24x 64GB DDR5-5600 RDIMM", "2 x 1.92TB M.2", "8x ConnectX-7 400Gb/s NDR": numbers with a unit are
taken; words that say nothing about a plan are passed over. A text that says a part twice, or not
at all, is refused.

Decides: what an offer's phrases mean.
Held by: tests/unit/facts/test_seller_words.py.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from kimi_prov.catalog.names import read_gpu_words
from kimi_prov.facts.written_numbers import parse_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Part = dict[str, Any]
MAX_LENGTH = 400

WORD_COUNTS = {"single": 1, "dual": 2, "two": 2, "four": 4, "quad": 4, "eight": 8}
_COUNT_BEFORE = re.compile(
    r"^(?:qty\.?[: ]*)?\(?(\d{1,4})\)?\s*"
    r"(?:(?<=[\d)])x|x(?=\s)|[\u00d7*]|(?:pcs|pieces|units?)\b\.?(?:\s+of\b)?|each\b)"
    r"\s*(?=\S)(.+)$"
    r"|^(?:qty\.?[: ]*)(\d{1,4})\b[,: ]*(.+)$|^\((\d{1,4})\)\s*(.+)$",
    re.IGNORECASE,
)
_COUNT_AFTER = re.compile(
    r"^(.+\S)(?:\s+[x\u00d7]\s*|\s*[\u00d7*]\s*|[\s,;(]+x\s*|[\s,;(]+qty\.?[: ]*)(\d{1,4})\)?$",
    re.IGNORECASE,
)
_REMARK = re.compile(r"\s*\([^()\d]*\)$")
_BEFORE_LANES = re.compile(r"(?:pci-?e|gen)\W*\d?(?:\.0)?$", re.IGNORECASE)
_LANES = re.compile(r"\b(?:pci-?e|gen)\W*\d?(?:\.0)? ?x\d{1,2}\b", re.IGNORECASE)

# A number with a unit of size; "GB/s" and "Gbit" are speeds.
_SIZE = re.compile(
    r"(?:(?<![\w.])(?<!gpu-)|(?<=\d[x\u00d7]))(\d[\d.,']*)\s*(pb|tb|tib|gb|gib|t|g)(?![\w/])(?!\s*/\s*s)",
    re.IGNORECASE,
)
# What of a machine's memory is free now.
_AVAILABLE = re.compile(r"[/,(]?\s*\d[\d.,]*\s*[gt]i?b (?:available|free|used)\b\)?", re.IGNORECASE)
# Two digits behind a comma are decimals: thousands come in threes.
_COMMA_DECIMALS = re.compile(r"^(\d{1,4}),(\d{1,2})$")
_UNITS = {"g": 0, "t": 1, "p": 2}
_MODULES_BEFORE = re.compile(
    r"(?<![\w.\-])\(?(\d{1,3})\)?\s*(?:[x\u00d7*]|pcs\.?|pieces|units?|dimms?|modules?|sticks?)?"
    r"\s*(?:of\s*)?$|(?<![\w.\-])(\d{1,3})\s*[x\u00d7]\s+(?:(?:[a-z]|\d{4}\b)[\w.-]*\s+){1,3}$"
    r"|\bqty\.?[: ]*(\d{1,3})[, ]*$",
    re.IGNORECASE,
)
_MODULES_AFTER = re.compile(
    r"(?:(?<!\w)x|[\u00d7*])\s*(\d{1,3})\b(?!\s*[gt]i?b?\b)|\bqty\.?[: ]*(\d{1,3})\b", re.IGNORECASE
)
_MODULES = re.compile(r"(?<![\w.])(\d{1,3})\s*(?:dimms?|modules?|sticks?)\b", re.IGNORECASE)
_PER_SOCKET = re.compile(r"\b(?:per|each|every|a)\s+(?:cpu|socket|processor)\b|/(?:cpu|socket)\b")
_TYPE = re.compile(r"\b(lpddr[45]x?|ddr[2-6])", re.IGNORECASE)
_MULTIPLEXED = re.compile(r"\bmc?r[ -]?dimms?\b", re.IGNORECASE)
_SPEED = re.compile(
    r"\bddr[2-6][ -]*(\d{4,5})\b|\bpc[345]l?[ -](\d{4,5})\w?\b|\b(\d{4,5})\s*(?:mt/?s?|mhz)\b"
    r"|\b(?:mc?)?rdimms?[ -](\d{4,5})\b"
    r"|(?<![\w.,-])(\d{4,5})(?![\w.,]|\s*(?:gb|tb|gib|tib)\b)",
    re.IGNORECASE,
)
_PC_BYTES = 8000  # PC4-21300 names MB/s, PC4-2666 MT/s: no module has 8,000 MT/s under that name
_PC4_SPEEDS = (1600, 1866, 2133, 2400, 2666, 2933, 3200, 3600, 4000, 4400, 4800, 5200, 5600, 6400)
# How far a total may lie from its modules: 1.15 TB is written for twelve modules of 96 GB.
_TOTAL_TOLERANCE = 0.03

_DISK_KINDS = (
    ("nvme", re.compile(r"nvme|\bu[ .]?[23]\b|\be[13][ .]?[sl]\b|edsff|pci-?e|gen[345]|optane")),
    ("ssd", re.compile(r"\bssds?\b|\bm[ .]?2\b|solid.state")),
    (
        "hdd",
        re.compile(r"\bhdds?\b|\b\d*[.,]?\d+k? ?rpm\b|\b7[.,]2k\b|\b1[05]k\b|near.?line|\bsata\b"),
    ),
    ("network", re.compile(r"\bnfs\b|lustre|ceph|\bgpfs\b|weka|vast\b|network")),
)

_LINK_SPEED = re.compile(
    r"(?:(?<![\w.])|(?<=\d[x\u00d7]))(?:\d+/)*(\d+(?:\.\d+)?)\s*(?:gbit/s|gb/s|gbps|gbe|gbit|gige|gb|g(?:base[-\w]*)?)\b",
    re.IGNORECASE,
)
_RATES = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
# "NDR200" is half of a port of NDR.
_RATE = re.compile(r"\b(edr|hdr|ndr|xdr)(\d{3})?", re.IGNORECASE)
_PORTS = re.compile(r"\b(?:(\d)|(single|dual|two|quad|four))[- ]ports?\b|\b(\d)p\b", re.IGNORECASE)
_PORTS_BEFORE = re.compile(r"(?<![\w.])(\d{1,2})\s*[x\u00d7*]\s*$", re.IGNORECASE)
# "8568Y+" is a name: a plus between parts has a blank before it.
# A comma between digits is part of a number.
_SEPARATOR = re.compile(
    r"(?:\s*(?:(?<!\d),|,(?!\d)|[;&])|\s\+|\s(?:and|plus)\b)\s*(?=\S)", re.IGNORECASE
)

_SYSTEMS = {
    "ubuntu": "ubuntu",
    "debian": "debian",
    "rhel": "rhel",
    "red hat enterprise linux": "rhel",
    "rocky": "rocky",
    "almalinux": "almalinux",
    "alma": "almalinux",
    "sles": "sles",
    "suse linux enterprise server": "sles",
    "centos": "centos",
    "fedora": "fedora",
}
_SYSTEM = re.compile(rf"\b({'|'.join(_SYSTEMS)})\b[^\d]{{0,30}}(\d+(?:\.\d+)?)", re.IGNORECASE)


class SellerWordsError(Exception):
    """A phrase that says a part twice, or not at all; the text says what was expected."""


class _Sized(NamedTuple):
    """A size in GB with the count beside it, and the text up to the next one."""

    many: int | None
    gb: float
    words: str


def split_count(text: str) -> tuple[int | None, str]:
    """Split "8x H200", "Dual Xeon 6960P", "(8) H200" and "H200 x8" into number and name."""
    text = " ".join(text[:MAX_LENGTH].split())
    before = _COUNT_BEFORE.match(text)
    if before:
        count, name = (part for part in before.groups() if part is not None)
        return int(count), name.strip()
    word, _, rest = text.partition(" ")
    if word.lower() in WORD_COUNTS and rest:
        return WORD_COUNTS[word.lower()], rest
    after = _COUNT_AFTER.match(text) or _COUNT_AFTER.match(_REMARK.sub("", text))
    if after is None or _BEFORE_LANES.search(after[1]):
        return None, text
    return int(after[2]), after[1].strip()


def count_gpus(many: int | None, model: str) -> int | None:
    """Return the GPUs of so many cards or boards: "2x HGX H100 8-GPU" are 16."""
    board = read_gpu_words(model).boards
    return many * board if many and board and many != board else many or board


def count_all_modules(memory: Part, sockets: int) -> None:
    """Count the memory of all sockets where the text counts that of one."""
    if memory.pop("per_socket", False):
        memory["dimms" if "dimms" in memory else "total_gb"] *= sockets


def parse_memory(text: str) -> Part:
    """Return modules and their size or the total, speed and type of memory.

    Sizes are GB as sold (64 means 64 GiB). `per_socket` is there where the text counts the modules
    of one socket. Raises SellerWordsError.
    """
    text = _AVAILABLE.sub(" ", text[:MAX_LENGTH])
    sizes = list(_find_sizes(text, tera=1024))
    if not sizes:
        raise SellerWordsError("no size with a unit")
    part = _combine_sizes(sizes, _MODULES.search(text))
    speeds = sorted(set(_find_speeds(text)))
    if speeds:
        part["speed_mt_s"] = speeds[-1]
        part |= {"configured_mt_s": speeds[0]} if len(speeds) > 1 else {}
    types = {match.upper() for match in _TYPE.findall(text)}
    types |= {"DDR5"} if _MULTIPLEXED.search(text) else set()
    if len(types) > 1:
        raise SellerWordsError(f"of two types, {' and '.join(sorted(types))}")
    part |= {"type": types.pop()} if types else {}
    return part | ({"per_socket": True} if _PER_SOCKET.search(text.lower()) else {})


def add_memory(known: Part, part: Part) -> Part:
    """Return the memory of two rows of an offer together."""
    if "dimms" in known and known.get("dimm_gb") == part.get("dimm_gb"):
        return {**known, "dimms": known["dimms"] + part["dimms"]}
    total = sum(row.get("total_gb") or row["dimms"] * row["dimm_gb"] for row in (known, part))
    kept: Part = {key: known[key] for key in ("speed_mt_s", "type") if key in known}
    return {"total_gb": total, **kept}


def _combine_sizes(sizes: list[_Sized], counted: re.Match[str] | None) -> Part:
    """Return the modules where the text counts them, else the total."""
    modules = list(dict.fromkeys((size.many, size.gb) for size in sizes if size.many))
    # "32 x 64GB (1x64GB) kit" says the size of one module twice.
    modules = [row for row in modules if row[0] != 1] or modules
    # "128GB (8x 16GB Micron 16GB)" says the size of a module twice.
    each = {gb for _, gb in modules}
    totals = sorted({size.gb for size in sizes if not size.many})
    totals = [gb for gb in totals if gb not in each] or totals
    if len(totals) > 1 and not _is_near(totals[0], totals[-1]):
        raise SellerWordsError(f"two totals, {totals[0]:g} and {totals[-1]:g} GB")
    if not modules:
        if counted is None or totals[-1] % int(counted[1]):
            return {"total_gb": totals[-1]}
        return {"dimms": int(counted[1]), "dimm_gb": round_size(totals[-1] / int(counted[1]))}
    total = sum((count or 0) * gb for count, gb in modules)
    if totals and not _is_near(totals[-1], total):
        written = ", ".join(f"{count} x {gb:g} GB" for count, gb in modules)
        raise SellerWordsError(f"{written} are {total:g} GB, and the total says {totals[-1]:g} GB")
    if len(modules) > 1:
        return {"total_gb": total}
    return {"dimms": modules[0][0], "dimm_gb": modules[0][1]}


def _is_near(total: float, modules: float) -> bool:
    """Whether two totals are one, in either reading of a terabyte."""
    return any(
        abs(modules - value) <= _TOTAL_TOLERANCE * modules for value in (total, total * 1000 / 1024)
    )


def _find_speeds(text: str) -> Iterator[int]:
    """Yield the speeds in MT/s that a text about memory says."""
    for match in _SPEED.finditer(_SIZE.sub(" ", text)):
        speed = int(next(group for group in match.groups() if group))
        if match[2] and speed >= _PC_BYTES:
            speed = min(_PC4_SPEEDS, key=lambda known: abs(known - speed / 8))
        yield speed


def parse_disks(text: str) -> list[Part]:
    """Return the disks that a text lists, each with count, size in GB (10^9 bytes) and kind.

    Raises SellerWordsError where it says no size.
    """
    text = text[:MAX_LENGTH]
    sizes, first = list(_find_sizes(text, tera=1000)), _SIZE.search(text)
    if not sizes or first is None:
        raise SellerWordsError("no size with a unit")
    head = text[: first.start()]
    # "8x ThinkSystem E3.S 3.84TB": words may stand between the count and the only size.
    many = split_count(text)[0] if len(sizes) == 1 else None
    parts = []
    for size in sizes:
        kind = _find_kind(size.words) or _find_kind(head)
        part: Part = {"size_gb": size.gb}
        part |= {"count": count} if (count := size.many or many) else {}
        parts.append(part | ({"kind": kind} if kind else {}))
    return parts


def _find_kind(words: str) -> str | None:
    low = words.lower()
    return next((kind for kind, pattern in _DISK_KINDS if pattern.search(low)), None)


def _find_sizes(text: str, *, tera: int) -> Iterator[_Sized]:
    """Yield each size of a text with the count before or behind it."""
    sizes = [size for size in _SIZE.finditer(text) if _read_gb(size, tera) is not None]
    bounds = [*(size.start() for size in sizes), len(text)]
    for size, (start, past) in zip(sizes, pairwise(bounds), strict=True):
        words = text[size.end() : past]
        before = _MODULES_BEFORE.search(text[:start])
        # "PCIe 5.0 x4" are lanes.
        after = _MODULES_AFTER.search(_LANES.sub("", words))
        match = before or after
        count = next(filter(None, match.groups()), None) if match else None
        gb = _read_gb(size, tera)
        if gb is not None:
            yield _Sized(int(count) if count and int(count) else None, gb, words)


def _read_gb(size: re.Match[str], tera: int) -> float | None:
    digits = _COMMA_DECIMALS.sub(r"\1.\2", size[1].rstrip(".,'"))
    value = parse_number(digits, grouped=True)
    if isinstance(value, str):
        raise SellerWordsError(value)
    if value is None:
        return None
    return round_size(value * tera ** _UNITS[size[2][0].lower()])


def round_size(value: float) -> float:
    """Write 3840.0000000000005 as 3840."""
    near = round(value, 6)
    return int(near) if float(near).is_integer() else near


def parse_nics(text: str) -> list[Part]:
    """Return the network cards that a text lists, each with speed in Gbit/s and number of ports.

    Raises SellerWordsError for a card without a speed.
    """
    return [_parse_nic(segment) for segment in split_list(text[:MAX_LENGTH], _has_speed)]


def _has_speed(text: str) -> bool:
    return bool(_LINK_SPEED.search(text) or _RATE.search(text))


def _parse_nic(text: str) -> Part:
    ports = _PORTS.search(text)
    many = int(ports[1] or ports[3] or 0) or WORD_COUNTS[str(ports[2]).lower()] if ports else 1
    count, rest = split_count(_PORTS.sub(" ", text) if ports else text)
    speed, rate = _LINK_SPEED.search(rest), _RATE.search(rest)
    if speed is None and rate is None:
        raise SellerWordsError("no speed")
    inner = _PORTS_BEFORE.search(rest[: speed.start()]) if speed else None
    many *= (count or 1) * (int(inner[1]) if inner else 1)
    named = int(rate[2] or _RATES[rate[1].lower()]) if rate else 0
    value = float(speed[1]) if speed else float(named)
    part: Part = {"speed_gbit_s": round_size(value)}
    said = count is not None or inner is not None or ports is not None
    return part | ({"count": many} if said else {})


def split_list(text: str, is_whole: Callable[[str], bool]) -> list[str]:
    """Split a list at commas, "+" and "and" where each piece `is_whole`; else keep it together."""
    pieces: list[str] = []
    for piece in _SEPARATOR.split(text.strip()):
        if pieces and not (is_whole(piece) and is_whole(pieces[-1])):
            pieces[-1] = f"{pieces[-1]}, {piece}"
        else:
            pieces.append(piece)
    return pieces


def parse_system(text: str) -> str | None:
    """Return an operating system as ID-VERSION, `ubuntu-22.04` of "Ubuntu Server 22.04 LTS"."""
    match = _SYSTEM.search(text[:MAX_LENGTH])
    return f"{_SYSTEMS[match[1].lower()]}-{match[2]}" if match else None
