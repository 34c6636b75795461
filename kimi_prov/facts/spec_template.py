"""A spec sheet to start from: a server of the catalogue, with comments that say what to change."""

from __future__ import annotations

import json
import re
import textwrap
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.facts.spec import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.catalog.hardware import Gpu
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.servers import Server

# What YAML reads as the text that it is.
_BARE = re.compile(r"[A-Za-z][\w+./() -]*[\w+.)]|[A-Za-z]")
_YAML_KEYWORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_WIDTH = 98


def format_sheet(server: Server, catalogue: Catalogue) -> str:
    """Return the sheet of a server as commented YAML, which `check` takes as it is."""
    gpu = catalogue.find_gpu(server.gpu) if server.gpu else None
    parts = (
        _format_head(server),
        _format_processors(server),
        _format_memory(server),
        _format_gpus(server, gpu),
        _format_disks(server),
        _format_nics(server),
        _format_software(server, gpu),
        _PRICE,
    )
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _format_head(server: Server) -> Iterator[str]:
    yield from _format_comment(
        f"{_format_sentence(server.title)}: a spec sheet to start from. Change what your quote "
        "says otherwise, then:"
    )
    yield "#   kimi-prov check FILE"
    yield from _format_comment(
        f"Source of these figures: {server.source} (confidence: {server.confidence})."
    )
    yield from _format_comment(
        "What stands behind a # is a comment; take the # away to use a line. What is left out is "
        "unknown, or as the part itself implies."
    )
    yield f"schema: {SCHEMA}"
    yield f"name: {_format_scalar(server.name)}"
    note = f"{_format_sentence(server.title)}, from the catalogue: {server.note or 'no quote yet'}"
    yield f"note: {_format_scalar(note)}"


def _format_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _format_processors(server: Server) -> Iterator[str]:
    yield "# Processors: `kimi-prov catalog cpus` lists the names."
    yield "cpu:"
    yield f"  model: {_format_scalar(server.cpu)}"
    yield f"  sockets: {server.sockets}"
    yield "  # NUMA nodes of the whole machine, where its firmware is not set as delivered:"
    yield f"  # numa_nodes: {server.sockets}"


def _format_memory(server: Server) -> Iterator[str]:
    if server.dimms is None or server.dimm_gb is None:
        yield "# Memory in GiB; it is soldered."
        yield "memory:"
        yield f"  total_gb: {server.memory_gb}"
        return
    total = server.dimms * server.dimm_gb
    yield "# Memory: modules of the whole machine; 64 means 64 GiB. Their number says how many"
    yield "# channels work, and with that how fast memory is."
    yield "memory:"
    yield f"  dimms: {server.dimms}"
    yield f"  dimm_gb: {server.dimm_gb}"
    if server.memory_mt_s is not None:
        yield f"  speed_mt_s: {server.memory_mt_s}"
    yield "  # Where the modules are not known, instead of dimms and dimm_gb:"
    yield f"  # total_gb: {total}"


def _format_gpus(server: Server, gpu: Gpu | None) -> Iterator[str]:
    if server.gpu is None:
        yield "# GPUs: none. `kimi-prov catalog gpus` lists the names; several kinds are a list."
        yield "# gpus: {model: L40S, count: 1}"
        return
    yield "# GPUs: `kimi-prov catalog gpus` lists the names; several kinds are a list. Without"
    yield "# GPUs, take this part away."
    yield "gpus:"
    yield f"  model: {_format_scalar(server.gpu)}"
    yield f"  count: {server.gpus}"
    if gpu is not None and gpu.nvlink_gb_s and not gpu.nvswitch:
        yield "  # Links between them: full (each with each), pairs (by bridges) or none:"
        yield "  # nvlink: pairs"
    if gpu is not None and gpu.tdp_w is not None:
        yield "  # The limit of each in W, where the vendor sets one:"
        yield f"  # power_limit_w: {gpu.tdp_w}"


def _format_disks(server: Server) -> Iterator[str]:
    yield "# Disks: nvme, ssd, hdd or network; size as sold, of one: 3840 GB are 3.84 TB. So is the"
    yield "# speed, which decides how fast the model starts."
    yield "disks:"
    for disks in server.disks:
        yield f"  - kind: {disks.kind}"
        yield f"    size_gb: {_format_figure(disks.size_gb)}"
        yield f"    count: {disks.count}"
        yield "    # read_gb_s: 7"


def _format_nics(server: Server) -> Iterator[str]:
    yield "# Network cards, each with its speed."
    if not server.nics:
        yield "# nics: [{speed_gbit_s: 100, count: 2}]"
        return
    yield "nics:"
    for nics in server.nics:
        yield f"  - speed_gbit_s: {_format_figure(nics.speed_gbit_s)}"
        yield f"    count: {nics.count}"


def _format_software(server: Server, gpu: Gpu | None) -> Iterator[str]:
    yield "# What will be installed already. `kimi-prov catalog systems` lists what is known."
    yield "software:"
    yield f"  os: {_format_scalar(server.os or 'debian-12')}"
    if gpu is not None and gpu.vendor == "nvidia":
        yield "  # The driver's version, in quotes, where one is there:"
        yield '  # nvidia_driver: "580.95.05"'


_PRICE = (
    "# The quote's price: to buy, in dollars; or by the hour, power included.",
    "# price: {purchase_usd: 250000}",
    "# price: {hourly_usd: 26}",
    "# In another currency, with its rate: the dollars for one unit. There is no table of rates.",
    "# price: {purchase: 230000, currency: EUR, usd_per_unit: 1.08}",
)


def _format_comment(text: str) -> list[str]:
    line = clean_text.clean_line(text)
    return textwrap.wrap(line, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _format_figure(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


def _format_scalar(text: str) -> str:
    """Write a text so that YAML reads that text."""
    line = clean_text.clean_line(text)
    bare = _BARE.fullmatch(line) and line.lower() not in _YAML_KEYWORDS
    return line if bare else json.dumps(line, ensure_ascii=False)
