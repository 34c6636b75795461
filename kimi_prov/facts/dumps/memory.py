"""Memory: free and dmidecode, in the form of /proc/meminfo and of the modules alone."""

from __future__ import annotations

import re

from kimi_prov.contract.numbers import parse_leading_decimal
from kimi_prov.facts.dumps import local_words
from kimi_prov.on_host.probe.memory import parse_modules

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
# Numbers without a unit are KiB by default; `free -b`, -m and -g are told apart by their size.
_MIN_BYTES, _MIN_KIB = 1 << 33, 1 << 22
_MIN_MIB = 1 << 14


def normalise_free(text: str) -> dict[str, str]:
    """Return `free`, with any unit, as /proc/meminfo; a rounded amount is the best there is."""
    text = local_words.rename_rows(text)
    row = re.search(r"^Mem:\s+(\S+)(.*)$", text, re.MULTILINE)
    swap = re.search(r"^Swap:\s+(\S+)", text, re.MULTILINE)
    total = _parse_size(row[1]) if row else None
    if row is None or not total:
        return {}
    lines = [f"MemTotal: {total // 1024} kB"]
    words = row[2].split()
    if "available" in text and len(words) >= 5:
        scale = _find_scale(row[1])
        available = _parse_size(words[-1], scale)
        lines += [f"MemAvailable: {available // 1024} kB"] if available is not None else []
    swapped = _parse_size(swap[1], _find_scale(row[1])) if swap else None
    lines += [f"SwapTotal: {swapped // 1024} kB"] if swapped is not None else []
    return {"meminfo.txt": "\n".join(lines)}


def _find_scale(word: str) -> int:
    amount = parse_leading_decimal(word) or 0
    if amount >= _MIN_BYTES:
        return 1
    if amount >= _MIN_KIB:
        return 1 << 10
    return 1 << 20 if amount >= _MIN_MIB else 1 << 30


def _parse_size(word: str, scale: int | None = None) -> int | None:
    match = re.fullmatch(r"([\d.]{1,20})([BKMGTP]?)i?B?", word)
    amount = parse_leading_decimal(match[1]) if match else None
    if match is None or amount is None:
        return None
    unit = _UNITS[match[2]] if match[2] else scale or _find_scale(word)
    return round(amount * unit)


def normalise_dmidecode(text: str) -> dict[str, str]:
    """Return the blocks of memory modules alone; other blocks have similar words."""
    blocks = [
        block
        for block in re.split(r"\n\s*\n", text)
        if re.search(r"^\s*Memory Device\s*$", block, re.MULTILINE)
    ]
    return {"dmidecode.txt": "\n\n".join(blocks)} if blocks else {}


def sum_modules(text: str) -> int:
    """Return the bytes of all modules, which is a little more than the kernel shows."""
    return sum(row["size_bytes"] or 0 for row in parse_modules(text) or ())
