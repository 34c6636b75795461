"""Disks and network cards, from lsblk and ip."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.numbers import parse_int, parse_leading_decimal

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.machine import DiskFacts
    from kimi_prov.contract.documents.facts.quote import NicFacts

_MAX_ROWS = 512
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_NO_DISK = re.compile(r"(loop|ram|zram|sr|fd|nbd)\d+")
# Names of cards; bridges, tunnels and containers' ends have others.
_CARD = re.compile(r"(?:en|eth|ib|wl|mlx)[\w.-]*")


def read_disks(document: dict[str, object]) -> list[DiskFacts]:
    """Return the disks of `lsblk -J`."""
    rows = document.get("blockdevices")
    return [
        _make_disk(str(row.get("name")), str(row.get("size")), row.get("rota"), row.get("model"))
        for row in (rows[:_MAX_ROWS] if isinstance(rows, list) else ())
        if isinstance(row, dict) and _is_disk(str(row.get("name")), row.get("type"))
    ]


def parse_disks(text: str) -> list[DiskFacts]:
    """Return the disks of plain lsblk; a disk's line has no branch before its name."""
    lines = text.splitlines()
    head = lines[0].split()
    disks = []
    for line in lines[1:_MAX_ROWS]:
        cells = dict(zip(head, line.split(), strict=False))
        name, size = cells.get("NAME", ""), cells.get("SIZE", "")
        kind = "disk" if re.search(r"\bdisk\b", line) or "TYPE" not in head else None
        if (
            re.match(r"\w", line)
            and re.fullmatch(r"[\d.]+[BKMGTP]?", size)
            and _is_disk(name, kind)
        ):
            disks.append(_make_disk(name, size, cells.get("ROTA"), None))
    return disks


def _is_disk(name: str, kind: object) -> bool:
    return kind in (None, "disk") and _NO_DISK.fullmatch(name) is None


def _make_disk(name: str, size: str, rotates: object, model: object) -> DiskFacts:
    kind = None
    if name.startswith("nvme"):
        kind = "nvme"
    elif name.startswith(("vd", "xvd")):
        kind = "virtual"
    elif rotates is not None:
        kind = "hdd" if rotates in (True, "1") else "ssd"
    return {
        "name": name[:64],
        "kind": kind,
        "size_bytes": _parse_size(size),
        "model": str(model).strip()[:128] if model else None,
        "read_bytes_per_s": None,
    }


def _parse_size(text: str) -> int | None:
    match = re.fullmatch(r"([\d.]{1,20})([BKMGTP]?)", text)
    amount = parse_leading_decimal(match[1]) if match else None
    return round(amount * _UNITS[match[2]]) if match and amount is not None else None


def read_cards(rows: list[Any]) -> list[NicFacts]:
    """Return the network cards of `ip -j addr` or `ip -j link`."""
    cards = []
    for row in rows[:_MAX_ROWS]:
        name = str(row.get("ifname")) if isinstance(row, dict) else ""
        if _CARD.fullmatch(name) and not row.get("linkinfo"):
            kind = str(row.get("link_type"))
            cards.append(_make_card(name, str(row.get("operstate")) == "UP", kind))
    return cards


def parse_cards(text: str) -> list[NicFacts]:
    """Return the network cards of `ip addr`, `ip link` and `ip -br addr`."""
    full = re.finditer(
        r"^\d+: ([^\s:@]+): <[^>]*>[^\n]* state (\w+)[^\n]*(?:\n\s+link/(\w+))?", text, re.MULTILINE
    )
    brief = re.finditer(r"^([a-z][\w.-]*)\s+(UP|DOWN|UNKNOWN)\b()", text, re.MULTILINE)
    rows = [(m[1], m[2], m[3] or "") for m in [*full, *brief]]
    return [
        _make_card(name, state == "UP", kind)
        for name, state, kind in rows[:_MAX_ROWS]
        if _CARD.fullmatch(name)
    ]


def _make_card(name: str, up: bool, kind: str) -> NicFacts:  # noqa: FBT001  (a row)
    infiniband = kind == "infiniband" or name.startswith("ib")
    return {
        "name": name[:64],
        "kind": "infiniband" if infiniband else "ethernet",
        "speed_bits_per_s": None,
        "up": up,
    }


def read_size_gib(value: object) -> int | None:
    """Return GiB of a JSON amount as bytes; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    amount = parse_leading_decimal(str(value))
    return round(amount * (1 << 30)) if amount else None


def read_whole(value: object) -> int | None:
    """Return a complete amount of a JSON value; None for anything else."""
    return None if isinstance(value, bool) else parse_int(str(value))
