"""Read an offer as it was pasted: a mail, a table or one sentence becomes a spec sheet to correct.

Decides: which line of an offer is about which part.
Held by: tests/unit/facts/test_offer_text.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import yaml

from kimi_prov.catalog.names import read_gpu_words
from kimi_prov.contract import clean_text
from kimi_prov.facts import foreign_machines, offer_tables, seller_words, spec_prices
from kimi_prov.facts.seller_words import Part, SellerWordsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kimi_prov.catalog.hardware import Gpu
    from kimi_prov.catalog.loader import Catalogue

_MAX_LINES = 400
_SCHEMA = "kimi-prov/spec/v1"
_LABEL = re.compile(
    r"^\s*([^\W\d_](?:[^\W\d_]|[ /()&-]){1,30}?)\s*(?:\d{1,2})?\s*(?:[:=]\s+|\uff1a\s*)(?=\S)"
)
_LABELS = (
    (
        "gpus",
        re.compile(r"\bgpus?\b|accelerator|graphi|\bcards?\b|grafik|beschleuniger|\u663e\u5361"),
    ),
    ("cpu", re.compile(r"\bcpus?\b|proc?z?ess|\u5904\u7406\u5668")),
    (
        "memory",
        re.compile(
            r"\bmemory\b|\bram\b|\bdimms?\b|arbeitsspeicher|m\u00e9moire|memoria|\bgeheugen\b|\u5185\u5b58"
        ),
    ),
    (
        "disks",
        re.compile(
            r"storage|\bssds?\b|\bdisks?\b|\bdrives?\b|\bnvme\b|\bhdds?\b|fest?platte|laufwerk|massenspeicher"
            r"|stockage|disque|almacenamiento|\bopslag\b|\u786c\u76d8"
        ),
    ),
    (
        "nics",
        re.compile(
            r"network|\bnics?\b|ethernet|infiniband|\blan\b|netzwerk|r\u00e9seau|\u7f51\u5361"
        ),
    ),
    ("software", re.compile(r"\bos\b|operating system|betriebssystem|syst\u00e8me d")),
    (
        "price",
        re.compile(r"price|\btotal\b|\bcost\b|\brent\b|\bquote\b|\bpreis\b|\bprix\b|\bprecio\b"),
    ),
    (
        "name",
        re.compile(r"^(?:name|system|model|server|product|machine|config\w*|\u670d\u52a1\u5668)$"),
    ),
)
_OTHER_LABEL = re.compile(
    r"psu|power|\u7535\u6e90|netzteil|alimentation|chassis|warranty|mother|main.?board|cooling|support|rail|raid"
)
_CPU = re.compile(
    r"\b(?:xeon|epyc|threadripper|ryzen|core i\d|core ultra"
    r"|grace(?! ?(?:hopper|blackwell))|ampere altra|i[3579]-\d{4,5}\w{0,2})\b",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"\b(?:platform|generation|scalable|series|family|compatible)\b", re.I)
_GPU = re.compile(
    r"\b(?:[abhl]\d{2,3}s?|gh?b?[23]00|mi\d{3}x?|rtx|geforce|instinct|tesla|quadro|hgx|dgx|gpus?)\b"
    r"|(?:\b|(?<=\dx))[2-5]0[6-9]0(?: ?ti)?\b",
    re.IGNORECASE,
)
_GPU_MEMORY = re.compile(r"\b(?:gpu|video|graphics) (?:memory|ram)\b|\bvram\b", re.IGNORECASE)
_FAMILY = re.compile(r"\b(?:rtx|geforce|quadro)\b", re.IGNORECASE)
_BARE_RTX = re.compile(r"[2-5]0[6-9]0\b")
_MEMORY = re.compile(r"\b(?:lp)?ddr\d|dimm|\bram\b|\bmemory\b|\becc\b|\bpc[45]-", re.IGNORECASE)
_DISK = re.compile(
    r"nvme|\bssd\b|\bhdd\b|\bm\.?2\b|\bu\.?[23]\b|\be[13]\.[sl]\b|\bsata\b|\bsas\b|\bdisks?\b|\bdrives?\b"
    r"|\b9[6-9]0 ?(?:pro|evo)\b|\braid\b|\bkioxia\b|\bsolidigm\b",
    re.IGNORECASE,
)
_NIC = re.compile(
    r"connectx|ethernet|infiniband|\bnics?\b|\d ?gbe\b|sfp|qsfp|\b[xnh]dr\b|bluefield|mellanox"
    r"|\blan\b|\bports?\b|gbase",
    re.IGNORECASE,
)
_MONEY = re.compile(
    r"(?:us\$|[$€£]|\b(?:usd|eur|gbp|chf)\b) ?\d[\d.,']*k?(?: ?(?:/ ?\w+|per \w+))?"
    rf"|(?:{spec_prices.SPACED}|\d[\d.,']*k?) ?(?:[$€£]|\b(?:usd|eur|gbp|chf)\b)"
    r"(?: ?(?:/ ?\w+|per \w+))?",
    re.IGNORECASE,
)
_PER_GPU = re.compile(r" ?(?:/|\bper|\bpro|\bpar) ?(?:gpu|card)\b", re.IGNORECASE)
_COUNT = re.compile(
    r"\b(\d{1,2}(?= ?[x\u00d7]|\b)|single|dual|two|four|quad|eight)(?: ?[x\u00d7])?"
    r"((?: [a-z()®™]+){0,3} ?)$",
    re.IGNORECASE,
)
# French writes "Go" and "To" for GB and TB.
_FRENCH = re.compile(r"(\d ?)([GT])o\b")
# Chinese has a word for what is counted: chips, modules, cards, and writes prices in 10,000s.
_CHINESE_PRICE = re.compile(r"\s*[,\uff0c]?\s*\d[\d.]*\u4e07\u5143?")
_CHINESE_COUNT = re.compile(r"(\d{1,3}) ?[\u9897\u6761\u5757\u5f20\u7247\u6839\u4e2a]")
_CHINESE = {
    "\u82f1\u7279\u5c14": "Intel",
    "\u81f3\u5f3a": " Xeon",
    "\u603b\u5185\u5b58": " total memory",
    "\u7684\u5185\u5b58": " memory",
    "\uff0c": ", ",
}
_THOUSANDS = re.compile(r"(\d+(?:\.\d+)?)k\b", re.IGNORECASE)
_BULLET = re.compile(r"^\s*(?:[-*\u2022\u2013#>]+\s+|\d{1,2}[.)]\s+(?!\d))")
_CELLS = re.compile(r"\s*(?:\||\t)\s*")
# Columns of a list that was pasted from a page or a PDF; of a table with bars they are no columns.
_COLUMNS = re.compile(r"(?<=\S)(?: {2,}|\t)(?=\S)")
_COUNT_CELL = re.compile(r"(?:qty\.?:? ?)?x?(\d{1,4})(?: ?(?:x|pcs\.?|units?|ea))?", re.IGNORECASE)
# A maker's number of an article: capitals and digits, as P64708-B21, S2D86A, BYTJ.
_ARTICLE = re.compile(r"(?=.*[A-Z])[A-Z0-9]{4,12}(?:-[A-Z0-9]{2,4})?")
# What looks like one and is none: a size, a processor's number, a kind of memory or card.
_NO_ARTICLE = re.compile(r"\d+[GT]I?B?$|\d{4}[A-Z]{1,2}$|RTX\d|[XNH]DR\d")
# Words beside which "x16" is a width of lanes.
_LANES = re.compile(r"\b(?:pci(?:-?e)?|gen|slots?|risers?|lanes?)(?:\b|(?=\d))", re.IGNORECASE)
_LANES_CELL = re.compile(r"x(?:4|8|16)", re.IGNORECASE)
_COUNT_IN_LABEL = re.compile(r"^([A-Za-z ]{2,20}?) ?\((?:x ?(\d{1,2})|(\d{1,2}) ?x)\)(\s*[:|])\s*")
# A machine's own name says which GPUs it takes; a line of its own says that they are in it.
_MACHINE = re.compile(
    r"\b(?:server(?! edition)|chassis|barebone|cto|system|platform|tray|rack)\b", re.IGNORECASE
)
_QUANTITY = re.compile(r"^(?:quantity|qty|count)\W+(\d{1,3})\b(?! ?x)", re.IGNORECASE)
# Where a part begins in a title without commas: at its count, or at the size of the memory.
_NEXT_PART = re.compile(
    r"\s+(?=\d{1,2} ?[x\u00d7] ?[A-Za-z\d])|\s+(?=\d+(?:\.\d+)? ?[GT]B (?:DDR|RAM|ECC|memory))",
    re.I,
)
# What a machine can take, and does not have.
_UP_TO = re.compile(
    r"\b(?:up to|bis zu|jusqu'\u00e0|hasta) \d[\d.,]* ?(?:x |[tg]i?b\b|(?:[\w-]+ ){0,2}gpus?\b)",
    re.IGNORECASE,
)
# Between GPUs of two kinds behind one label.
_NEXT_GPUS = re.compile(r"\s*(?:[+,&]|\band\b)\s*(?=\d{1,2} ?[x\u00d7])", re.IGNORECASE)
# Of a label the machine that the part is in: "GPU-node CPU".
_NODE_LABEL = re.compile(r"\b(?:gpu|ai|compute)[- ](?:node|server)s?\b")
_CUT = re.compile(r"\s*(?:;|(?<=\w):\s|\bwith\b|\.\s+(?=[A-Z$€£]))\s*")


@dataclass
class Offer:
    """A sheet as far as it was understood.

    `sources`: for each part of the sheet the lines that it was read from. `unread`: the other
    lines, with their numbers. `price`: an amount without a word for purchase or rent. `last`: the
    part that was read last. `gpus_of_machine`: the GPUs are those of the machine's own name.
    `has_chip`: processor and GPU are one chip, which the text names.
    """

    sheet: Part = field(default_factory=dict)
    sources: dict[str, list[int]] = field(default_factory=dict)
    unread: list[tuple[int, str]] = field(default_factory=list)
    price: str | None = None
    last: str = ""
    gpus_of_machine: bool = False
    has_chip: bool = False

    @property
    def missing(self) -> list[Literal["cpu", "memory"]]:
        """The parts that a sheet cannot be without."""
        needed: tuple[Literal["cpu", "memory"], ...] = ("cpu", "memory")
        return [part for part in needed if part not in self.sheet]


def read_offer(text: str, catalogue: Catalogue, name: str) -> Offer:
    """Return the sheet of a pasted offer; `name` is the machine's where the offer has none.

    Raises UserError for a machine that nothing of ours runs on.
    """
    foreign_machines.refuse(text, name)
    offer = Offer({"schema": _SCHEMA, "name": name})
    chip = foreign_machines.find_chip(text)
    if chip:
        _add_chip(chip, offer)
    lines = text.splitlines()
    for position, line, parts in offer_tables.list_lines(lines[:_MAX_LINES]):
        known = [
            _read_line(plain, position, catalogue, offer) for one in parts if (plain := _clean(one))
        ]
        plain = _clean(line)
        if plain and not any(known):
            offer.unread.append((position, plain))
    if len(lines) > _MAX_LINES:
        offer.unread.append((_MAX_LINES + 1, f"this line and those after it, to {len(lines)}"))
    return offer


def _clean(line: str) -> str:
    columns = line if "|" in line else _COLUMNS.sub(" | ", line.strip())
    columns = _FRENCH.sub(r"\1\2B", columns)
    columns = _CHINESE_COUNT.sub(r"\1x ", _CHINESE_PRICE.sub("", columns))
    for word, meaning in _CHINESE.items():
        columns = columns.replace(word, meaning)
    return clean_text.clean_line(columns)[: seller_words.MAX_LENGTH].strip()


def _add_chip(chip: foreign_machines.Chip, offer: Offer) -> None:
    """Add processor and GPU of one chip; what the lines say of both is known then."""
    offer.sheet["cpu"] = {"model": chip.cpu, "sockets": 1}
    offer.sheet["gpus"] = [{"model": chip.gpu, "count": 1}]
    offer.sources |= {"cpu": [chip.line], "gpus": [chip.line]}
    offer.has_chip = True


def _read_line(line: str, position: int, catalogue: Catalogue, offer: Offer) -> bool:
    """Add what a line says to the offer; False where it says nothing of a machine."""
    line = _COUNT_IN_LABEL.sub(_move_count, _BULLET.sub("", _UP_TO.sub(" ", line)))
    if _count_last(line, offer):
        return True
    label, rest = _split_label(_join_cells(line))
    if label == "name":
        offer.sheet["name"] = rest[:200]
        offer.sources["name"] = [position]
        return True
    if label == "other":
        return False
    known = False
    passed: list[str] = []
    for phrase in _split_phrases(rest, label):
        part = label or _classify(phrase)
        reader = _READERS.get(part or "")
        if reader is not None and reader(phrase, catalogue, offer):
            offer.sources.setdefault(str(part), []).append(position)
            offer.last = str(part)
            known = True
        elif part is not None or re.search(r"\d", phrase):
            passed.append(phrase)
    if known:
        offer.unread += [(position, phrase) for phrase in passed]
    return known


def _join_cells(line: str) -> str:
    """Return a table's row as one phrase; a cell that is a number counts the part beside it."""
    cells = _join_model(["", *(cell for cell in _CELLS.split(line) if cell)])[1:]
    if len(cells) < 2:
        return cells[0] if cells else ""
    count = _find_count(cells)
    words = [cell for cell in cells if not re.fullmatch(r"[\d.,]+", cell)]
    words = [cell for cell in words if not _COUNT_CELL.fullmatch(cell)]
    kept = [cell for cell in words if not _is_article(cell)]
    words = kept if any(not _is_label(cell) for cell in kept) else words
    if not words:
        return ""
    is_label = len(words) > 1 and (_is_label(words[0]) or _is_other_label(words[0]))
    text = f"{words[0]}: {' '.join(words[1:])}" if is_label else " ".join(words)
    if count is None:
        return text
    head, colon, rest = text.partition(": ")
    return f"{head}: {count}x {rest}" if colon else f"{count}x {text}"


def _join_model(cells: list[str]) -> list[str]:
    """Put a model's number into the cell of its family: "EPYC", "9654" is one name."""
    joined: list[str] = []
    for cell in cells:
        last = joined[-1] if joined else ""
        is_family = not re.search(r"\d", last) and (_CPU.search(last) or _FAMILY.search(last))
        if is_family and re.fullmatch(r"\d{4}[A-Z+]{0,2}", cell):
            joined[-1] = f"{last} {cell}"
        else:
            joined.append(cell)
    return joined


def _move_count(match: re.Match[str]) -> str:
    """Put the count in a label, as in "CPU (x2):", before the part; lanes of a slot are none."""
    if _LANES.search(match[1]):
        return match[0]
    return f"{match[1]}{match[4]} {match[2] or match[3]}x "


def _find_count(cells: list[str]) -> str | None:
    """Return the count that a row has in a cell; "x16" beside a slot is a width, and no count."""
    matches = [match for cell in cells if (match := _COUNT_CELL.fullmatch(cell))]
    counts = [match[1] for match in matches if not _LANES_CELL.fullmatch(match[0])]
    if not counts and not any(_LANES.search(cell) for cell in cells):
        counts = [match[1] for match in matches]
    return counts[0] if counts else None


def _is_article(cell: str) -> bool:
    """Whether a cell is a maker's number of an article: it names neither a part nor a size."""
    parts = (_NO_ARTICLE, _CPU, _GPU, _MEMORY, _DISK, _NIC)
    return bool(_ARTICLE.fullmatch(cell)) and not (
        _is_label(cell) or any(part.match(cell) for part in parts)
    )


def _is_label(cell: str) -> bool:
    """Whether a cell names a part and nothing of it: "CPU", "GPU Model", "System Memory"."""
    words = re.sub(r"\([^)]*\)|:$", "", cell.lower()).strip()
    return bool(re.fullmatch(r"[a-z][a-z /&-]{1,30}(?: \d)?", words)) and any(
        pattern.search(words) for _, pattern in _LABELS
    )


def _is_other_label(cell: str) -> bool:
    """Whether a cell names a part that no sheet has: "PSU", "Motherboard"."""
    return bool(
        re.fullmatch(r"[A-Za-z][A-Za-z /&-]{1,30}", cell) and _OTHER_LABEL.search(cell.lower())
    )


def _count_last(line: str, offer: Offer) -> bool:
    """Take a line "Quantity: 8" as the count of the part before it, where that had none."""
    match = _QUANTITY.match(line)
    rows = offer.sheet.get(offer.last) if match else None
    if match is None or offer.last not in ("cpu", "gpus") or re.search(r"[A-Z]{4}", line[8:]):
        return False
    row, key = (rows[-1], "count") if isinstance(rows, list) else (rows, "sockets")
    if not isinstance(row, dict) or row.get(key) != 1:
        return False
    row[key] = int(match[1])
    return True


def _split_label(line: str) -> tuple[str | None, str]:
    """Return the part that a line's label names, and the text behind it."""
    match = _LABEL.match(line)
    if match is None:
        return None, line
    words, rest = _NODE_LABEL.sub("", match[1].lower()), line[match.end() :]
    if _OTHER_LABEL.search(words):
        return "other", rest
    if re.search(r"[/&+]|\band\b", words) and sum(bool(p.search(words)) for _, p in _LABELS) > 1:
        return None, rest  # "CPU/RAM": what is which shows behind it
    return next(((part, rest) for part, pattern in _LABELS if pattern.search(words)), (None, rest))


def _split_phrases(text: str, label: str | None) -> Iterator[str]:
    if label is not None:
        yield from _NEXT_GPUS.split(text) if label == "gpus" else (text,)
        return
    for piece in _CUT.split(text):
        for phrase in seller_words.split_list(piece, lambda words: _classify(words) is not None):
            parts = sum(bool(one.search(phrase)) for one in (_CPU, _GPU, _MEMORY, _DISK))
            yield from _NEXT_PART.split(phrase) if parts > 2 else (phrase,)


def _classify(phrase: str) -> str | None:
    """Return the part of a sheet that a phrase without a label is about."""
    if _MONEY.match(phrase):
        return "price"
    if _CPU.search(phrase):
        return "cpu"
    named = _GPU.search(_GPU_MEMORY.sub(" ", phrase))
    if named and re.search(r"\d", phrase) and not _DISK.search(phrase):
        return "gpus"
    sized = re.search(r"\d ?[gt]i?b?\b", phrase, re.IGNORECASE)
    own = sized and not _GPU_MEMORY.search(phrase)
    tests = (("memory", _MEMORY, own), ("disks", _DISK, sized), ("nics", _NIC, True))
    for part, pattern, is_given in tests:
        if is_given and pattern.search(phrase):
            return part
    if seller_words.parse_system(phrase):
        return "software"
    return "price" if _MONEY.search(phrase) else None


def _split_part(phrase: str, name: re.Pattern[str]) -> tuple[int | None, str]:
    """Return the count and the model of a part: "I have a dual EPYC 9654" holds two EPYC 9654."""
    text = _MONEY.sub(" ", phrase).strip()
    many, model = seller_words.split_count(text)
    match = name.search(text)
    if many is not None or match is None:
        return many, model
    before = _COUNT.search(text[: match.start()])
    if before is None:
        return None, model
    count = before[1].lower()
    return seller_words.WORD_COUNTS.get(count) or int(count), text[before.start(2) :].strip()


def _read_cpu(phrase: str, catalogue: Catalogue, offer: Offer) -> bool:
    if offer.has_chip:
        return True
    many, model = _split_part(re.sub(r"\((?:R|TM)\)|[\u00ae\u2122]", "", phrase), _CPU)
    row = catalogue.match_cpu(model)
    named = _CPU.search(model)
    if row is None and named:
        # What stands in brackets or behind a comma says cores and clocks, in any language.
        model = re.split(r" ?[(,]", model[named.start() :])[0].strip()
        row = catalogue.match_cpu(model)
    if row is None and _NO_MODEL.search(model) and not re.search(r"\d{4}", model):
        return False
    known = offer.sheet.get("cpu")
    name = row.name if row else model
    if known and known["model"] != name:
        return False
    sockets = (known["sockets"] if known else 0) + (many or 1)
    offer.sheet["cpu"] = {"model": name, "sockets": sockets}
    return True


def _read_gpus(phrase: str, catalogue: Catalogue, offer: Offer) -> bool:
    if offer.has_chip:
        return True
    many, model = _split_part(phrase, _GPU)
    model = f"RTX {model}" if _BARE_RTX.match(model) else model
    # "(96 GB vRAM)" may be of all cards.
    bare = re.sub(r" ?\([^()]*\)", "", model)
    row = catalogue.match_gpu(model) or _find_gpu(model, catalogue) or catalogue.match_gpu(bare)
    machine = _MACHINE.search(model)
    if row is None and (machine or not re.search(r"\d", model)):
        return False
    if machine and offer.sheet.get("gpus"):
        return True
    count = seller_words.count_gpus(many, model) or 1
    rows = offer.sheet.setdefault("gpus", [])
    if offer.gpus_of_machine:
        rows.clear()  # the list names the board, which the machine's own line named before
    offer.gpus_of_machine = bool(machine)
    rows.append({"model": row.name if row else model, "count": count})
    return True


def _find_gpu(text: str, catalogue: Catalogue) -> Gpu | None:
    """Find a GPU within a maker's words: "ThinkSystem NVIDIA HGX B200 180GB 1000W 8-GPU Board".

    Where the words say a size of memory, one of another size is none.
    """
    said = read_gpu_words(text).memory_gb
    words = re.sub(r"[,()]", " ", text).split()
    starts = [at for at, word in enumerate(words) if _GPU.search(word) and re.search(r"\d", word)]
    for start in starts:
        for end in range(min(len(words), start + 5), start, -1):
            name = " ".join(words[start:end])
            row = catalogue.match_gpu(f"{name} {said}GB" if said else name)
            if row is not None:
                return row
    return None


def _read_memory(phrase: str, _catalogue: Catalogue, offer: Offer) -> bool:
    try:
        part = seller_words.parse_memory(_MONEY.sub(" ", phrase))
    except SellerWordsError:
        return False
    seller_words.count_all_modules(part, offer.sheet.get("cpu", {}).get("sockets", 1))
    known = offer.sheet.get("memory")
    offer.sheet["memory"] = seller_words.add_memory(known, part) if known else part
    return True


def _read_disks(phrase: str, _catalogue: Catalogue, offer: Offer) -> bool:
    return _extend(offer, "disks", seller_words.parse_disks, phrase)


def _read_nics(phrase: str, _catalogue: Catalogue, offer: Offer) -> bool:
    return _extend(offer, "nics", seller_words.parse_nics, phrase)


def _extend(offer: Offer, key: str, parse: Callable[[str], list[Part]], phrase: str) -> bool:
    try:
        rows = parse(_MONEY.sub(" ", phrase).strip())
    except SellerWordsError:
        return False
    offer.sheet.setdefault(key, []).extend(rows)
    return True


def _read_software(phrase: str, _catalogue: Catalogue, offer: Offer) -> bool:
    system = seller_words.parse_system(phrase)
    if system:
        offer.sheet["software"] = {"os": system}
    return bool(system)


def _multiply_money(phrase: str, offer: Offer) -> str:
    """Count a price of one GPU for all of them."""
    count = sum(row["count"] for row in offer.sheet.get("gpus", ())) or 1
    return re.sub(
        r"\d[\d,]*(?:\.\d+)?",
        lambda match: f"{float(match[0].replace(',', '')) * count:g}",
        phrase,
        count=1,
    )


def _read_price(phrase: str, _catalogue: Catalogue, offer: Offer) -> bool:
    each = _PER_GPU.search(phrase)
    if each:
        phrase = _multiply_money(_PER_GPU.sub("", phrase), offer)
    money = _MONEY.search(_THOUSANDS.sub(lambda k: f"{float(k[1]) * 1000:.0f}", phrase))
    if money is None:
        return False
    price = spec_prices.parse_phrase(_THOUSANDS.sub(lambda k: f"{float(k[1]) * 1000:.0f}", phrase))
    if isinstance(price, dict):
        offer.sheet["price"] = price
    else:
        offer.price = money[0].strip()
    return True


_READERS: dict[str, Callable[[str, Catalogue, Offer], bool]] = {
    "cpu": _read_cpu,
    "gpus": _read_gpus,
    "memory": _read_memory,
    "disks": _read_disks,
    "nics": _read_nics,
    "software": _read_software,
    "price": _read_price,
}


def format_offer(offer: Offer, source: str) -> str:
    """Return the sheet as YAML with the lines of each part, and what was not understood."""
    lines = [
        f"# The sheet that was understood of {source}. Correct it, then:  kimi-prov check FILE"
    ]
    for key, value in offer.sheet.items():
        if isinstance(value, list):
            lines.append(f"{key}:{_format_source(offer, key)}")
            lines += [f"  - {_format_value(row)}" for row in value]
        else:
            lines.append(f"{key}: {_format_value(value)}{_format_source(offer, key)}")
    if offer.price is not None:
        lines.append(f"# price: {offer.price}: to buy or by the hour? Write one of these:")
        lines.append("# price: {purchase_usd: 250000}")
        lines.append("# price: {hourly_usd: 26}")
    lines += [f"# {part}: is missing, and a sheet needs it" for part in offer.missing]
    if offer.unread:
        lines += ["# Not used:"]
        lines += [f"#   line {position}: {text}" for position, text in offer.unread]
    return "\n".join(lines) + "\n"


def _format_value(value: Any) -> str:  # noqa: ANN401
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=1_000_000, allow_unicode=True
    )
    return text.removesuffix("...\n").strip()


def _format_source(offer: Offer, key: str) -> str:
    numbers = list(dict.fromkeys(offer.sources.get(key, ())))
    if not numbers:
        return ""
    plural = "s" if len(numbers) > 1 else ""
    return f"  # line{plural} {', '.join(map(str, numbers))}"
