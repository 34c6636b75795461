"""Read an offer as it was pasted: a mail, a table or one sentence becomes a spec sheet to correct.

Decides: which line of an offer is about which part.
Held by: tests/unit/facts/test_offer_text.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import yaml

from kimi_prov.contract import clean_text
from kimi_prov.facts import seller_words, spec_prices
from kimi_prov.facts.seller_words import Part, SellerWordsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kimi_prov.catalog.loader import Catalogue

_MAX_LINES = 400
_SCHEMA = "kimi-prov/spec/v1"
_LABEL = re.compile(r"^\s*([A-Za-z][A-Za-z /()&-]{1,30}?)\s*(?:\d{1,2})?\s*[:=]\s+(?=\S)")
_LABELS = (
    ("cpu", re.compile(r"\bcpus?\b|processor")),
    ("memory", re.compile(r"\bmemory\b|\bram\b|\bdimms?\b")),
    ("gpus", re.compile(r"\bgpus?\b|accelerator|graphics|\bcards?\b")),
    ("disks", re.compile(r"storage|\bssds?\b|\bdisks?\b|\bdrives?\b|\bnvme\b|\bhdds?\b")),
    ("nics", re.compile(r"network|\bnics?\b|ethernet|infiniband|\blan\b")),
    ("software", re.compile(r"\bos\b|operating system")),
    ("price", re.compile(r"price|\btotal\b|\bcost\b|\brent\b|\bquote\b")),
    ("name", re.compile(r"^(?:name|system|model|server|product|machine|config\w*)$")),
)
_OTHER_LABEL = re.compile(
    r"psu|power|chassis|warranty|mother|main.?board|cooling|support|rail|raid"
)
_CPU = re.compile(r"\b(?:xeon|epyc|threadripper|ryzen|core i\d|core ultra)\b", re.IGNORECASE)
_GPU = re.compile(
    r"\b(?:[abhl]\d{2,3}s?|gh?b?[23]00|mi\d{3}x?|rtx|geforce|instinct|tesla|quadro|hgx|dgx|gpus?)\b"
    r"|(?:\b|(?<=\dx))[2-5]0[6-9]0(?: ?ti)?\b",
    re.IGNORECASE,
)
_BARE_RTX = re.compile(r"[2-5]0[6-9]0\b")
_MEMORY = re.compile(r"\bddr\d|dimm|\bram\b|\bmemory\b|\becc\b|\bpc[45]-", re.IGNORECASE)
_DISK = re.compile(
    r"nvme|\bssd\b|\bhdd\b|\bm\.?2\b|\bu\.?[23]\b|\be[13]\.[sl]\b|\bsata\b|\bsas\b|\bdisks?\b|\bdrives?\b"
    r"|\b9[6-9]0 ?(?:pro|evo)\b",
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
_COUNT = re.compile(
    r"\b(\d{1,2}(?= ?[x\u00d7]|\b)|single|dual|two|four|quad|eight)(?: ?[x\u00d7])?"
    r"((?: [a-z()®™]+){0,3} ?)$",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(r"(\d+(?:\.\d+)?)k\b", re.IGNORECASE)
_BULLET = re.compile(r"^\s*(?:[-*\u2022\u2013#>]+\s+|\d{1,2}[.)]\s+(?!\d))")
_CELLS = re.compile(r"\s*(?:\||\t)\s*")
_CUT = re.compile(r"\s*(?:;|\bwith\b|\.\s+(?=[A-Z$€£]))\s*")


@dataclass
class Offer:
    """A sheet as far as it was understood.

    `sources`: for each part of the sheet the lines that it was read from. `unread`: the other
    lines, with their numbers. `price`: an amount without a word for purchase or rent.
    """

    sheet: Part = field(default_factory=dict)
    sources: dict[str, list[int]] = field(default_factory=dict)
    unread: list[tuple[int, str]] = field(default_factory=list)
    price: str | None = None

    @property
    def missing(self) -> list[Literal["cpu", "memory"]]:
        """The parts that a sheet cannot be without."""
        needed: tuple[Literal["cpu", "memory"], ...] = ("cpu", "memory")
        return [part for part in needed if part not in self.sheet]


def read_offer(text: str, catalogue: Catalogue, name: str) -> Offer:
    """Return the sheet of a pasted offer; `name` is the machine's where the offer has none."""
    offer = Offer({"schema": _SCHEMA, "name": name})
    lines = text.splitlines()
    for position, line in enumerate(lines[:_MAX_LINES], start=1):
        plain = clean_text.clean_line(line)[: seller_words.MAX_LENGTH].strip()
        if plain and not _read_line(plain, position, catalogue, offer):
            offer.unread.append((position, plain))
    if len(lines) > _MAX_LINES:
        offer.unread.append((_MAX_LINES + 1, f"this line and those after it, to {len(lines)}"))
    return offer


def _read_line(line: str, position: int, catalogue: Catalogue, offer: Offer) -> bool:
    """Add what a line says to the offer; False where it says nothing of a machine."""
    label, rest = _split_label(_join_cells(_BULLET.sub("", line)))
    if label == "name":
        offer.sheet["name"] = rest[:200]
        offer.sources["name"] = [position]
        return True
    if label == "other":
        return False
    known = False
    for phrase in _split_phrases(rest, label):
        part = label or _classify(phrase)
        reader = _READERS.get(part or "")
        if reader is not None and reader(phrase, catalogue, offer):
            offer.sources.setdefault(str(part), []).append(position)
            known = True
    return known


def _join_cells(line: str) -> str:
    """Return a table's row as one phrase; a cell that is a number counts the part beside it."""
    cells = [cell for cell in _CELLS.split(line) if cell]
    if len(cells) < 2:
        return cells[0] if cells else ""
    counts = [cell for cell in cells if re.fullmatch(r"\d{1,4}", cell)]
    words = [cell for cell in cells if not re.fullmatch(r"[\d.,]+", cell)]
    is_label = bool(words) and any(
        pattern.fullmatch(words[0].lower()) for _, pattern in _LABELS if len(words) > 1
    )
    text = f"{words[0]}: {' '.join(words[1:])}" if is_label else " ".join(words)
    if not counts:
        return text
    head, colon, rest = text.partition(": ")
    return f"{head}: {counts[0]}x {rest}" if colon else f"{counts[0]}x {text}"


def _split_label(line: str) -> tuple[str | None, str]:
    """Return the part that a line's label names, and the text behind it."""
    match = _LABEL.match(line)
    if match is None:
        return None, line
    words, rest = match[1].lower(), line[match.end() :]
    if _OTHER_LABEL.search(words):
        return "other", rest
    return next(((part, rest) for part, pattern in _LABELS if pattern.search(words)), (None, rest))


def _split_phrases(text: str, label: str | None) -> Iterator[str]:
    if label is not None:
        yield text
        return
    for piece in _CUT.split(text):
        yield from seller_words.split_list(piece, lambda words: _classify(words) is not None)


def _classify(phrase: str) -> str | None:
    """Return the part of a sheet that a phrase without a label is about."""
    if _CPU.search(phrase):
        return "cpu"
    if _GPU.search(phrase) and re.search(r"\d", phrase) and not _DISK.search(phrase):
        return "gpus"
    sized = re.search(r"\d ?[gt]i?b?\b", phrase, re.IGNORECASE)
    tests = (("memory", _MEMORY, sized), ("disks", _DISK, sized), ("nics", _NIC, True))
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
    many, model = _split_part(phrase, _CPU)
    row = catalogue.match_cpu(model)
    named = _CPU.search(model)
    if row is None and named:
        model = model[named.start() :]
        row = catalogue.match_cpu(model)
    known = offer.sheet.get("cpu")
    name = row.name if row else model
    if known and known["model"] != name:
        return False
    sockets = (known["sockets"] if known else 0) + (many or 1)
    offer.sheet["cpu"] = {"model": name, "sockets": sockets}
    return True


def _read_gpus(phrase: str, catalogue: Catalogue, offer: Offer) -> bool:
    many, model = _split_part(phrase, _GPU)
    model = f"RTX {model}" if _BARE_RTX.match(model) else model
    row = catalogue.match_gpu(model)
    if row is None and not re.search(r"\d", model):
        return False
    count = seller_words.count_gpus(many, model) or 1
    offer.sheet.setdefault("gpus", []).append({"model": row.name if row else model, "count": count})
    return True


def _read_memory(phrase: str, _catalogue: Catalogue, offer: Offer) -> bool:
    try:
        part = seller_words.parse_memory(_MONEY.sub(" ", phrase))
    except SellerWordsError:
        return False
    seller_words.count_all_modules(part, offer.sheet.get("cpu", {}).get("sockets", 1))
    known = offer.sheet.get("memory")
    offer.sheet["memory"] = _add_memory(known, part) if known else part
    return True


def _add_memory(known: Part, part: Part) -> Part:
    if "dimms" in known and known.get("dimm_gb") == part.get("dimm_gb"):
        return {**known, "dimms": known["dimms"] + part["dimms"]}
    total = sum(row.get("total_gb") or row["dimms"] * row["dimm_gb"] for row in (known, part))
    kept: Part = {key: known[key] for key in ("speed_mt_s", "type") if key in known}
    return {"total_gb": total, **kept}


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


def _read_price(phrase: str, _catalogue: Catalogue, offer: Offer) -> bool:
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
