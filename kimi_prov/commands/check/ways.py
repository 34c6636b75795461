"""Other ways to serve with such machines: a firmware's setting, modules, lanes, several joined.

Each is planned by itself, and kept where it is faster or cheaper than the machine as it stands. The
firmware's setting is told of a machine that something else keeps from serving too.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.commands.check import other_settings
from kimi_prov.contract.cpu_lists import format_list, parse_list
from kimi_prov.contract.gpu_rows import get_gpu_name
from kimi_prov.facts import links, spec
from kimi_prov.show.report import hosts, recommendation
from kimi_prov.show.report.findings import filter_severity, is_possible
from kimi_prov.show.text.formats import format_figure
from kimi_prov.sizing import curve as curves
from kimi_prov.sizing import demand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kimi_prov.commands.check.other_settings import Judge
    from kimi_prov.contract.documents.check import (
        Assumption,
        CheckedTarget,
        RankedTarget,
        Way,
    )
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.machine import DimmFacts, NodeFacts
    from kimi_prov.contract.documents.facts.quote import LinkFacts
    from kimi_prov.sizing.load import Load

_JOINED = (2, 4)
_MIN_CARDS, _ALL_LANES = 2, 16
# The network that vendors of such machines offer: a port of this rate for each GPU.
_LINK: LinkFacts = {"kind": "infiniband", "speed_bits_per_s": 400_000_000_000, "count": 1}


def list_ways(
    target: CheckedTarget, load: Load | None, chosen: Mapping[str, object], judge: Judge
) -> list[Way]:
    """Return the ways that are better than the machine as it stands; `chosen` variables stay."""
    ways = [
        *_list_firmware(target, load, judge),
        *_list_modules(target, load, judge),
        *_list_lanes(target, load, judge),
        *_list_joined(target, load, judge),
    ]
    other = other_settings.find_better(target, load, chosen, judge)
    if other is not None:
        ways.insert(0, _make_way(other[0], other[1], recommendation.build_entry(other[1], load)))
    return ways


def _list_firmware(target: CheckedTarget, load: Load | None, judge: Judge) -> Iterator[Way]:
    """Try one NUMA node for each socket: pools of threads need nodes that divide evenly."""
    merged = _merge_nodes(target["facts"])
    if merged is None:
        return
    other = judge(merged, {})
    here, there = _name_blockers(target), _name_blockers(other)
    if there <= here and (_is_faster(other, target) or there < here):
        condition = "one NUMA node for each socket (firmware: SNC off, or NPS1)"
        if there:
            condition += ", once nothing else is in the way"
        yield _make_way(condition, other, recommendation.build_entry(other, load))


def _name_blockers(target: CheckedTarget) -> frozenset[str]:
    """Name what keeps a machine from serving; none where it serves by hand."""
    blockers = () if is_possible(target) else filter_severity(target, "blocker")
    return frozenset(row["id"] for row in blockers)


def _merge_nodes(facts: Facts) -> Facts | None:
    """Return the facts with one node for each socket; None where they have no more."""
    sockets, nodes = facts["cpu"]["sockets"] or 1, facts["numa"]["nodes"]
    if len(nodes) <= sockets or len(nodes) % sockets:
        return None
    each = len(nodes) // sockets
    merged = copy.deepcopy(facts)
    merged["numa"]["nodes"] = [
        _join_nodes(index, nodes[index * each : (index + 1) * each]) for index in range(sockets)
    ]
    return merged


def _join_nodes(index: int, nodes: list[NodeFacts]) -> NodeFacts:
    cpus = sorted(cpu for node in nodes for cpu in parse_list(node["cpus"]))
    return {
        "id": index,
        "cpus": format_list(cpus),
        "memory_total_bytes": sum(node["memory_total_bytes"] or 0 for node in nodes),
        "memory_free_bytes": None,
        "distances": [],
    }


def _list_modules(target: CheckedTarget, load: Load | None, judge: Judge) -> Iterator[Way]:
    """Try one module on each channel instead of two: two run slower."""
    larger = _join_modules(target["facts"])
    if larger is None:
        return
    other = judge(larger, {})
    if is_possible(other) and _is_faster(other, target):
        module = (larger["memory"]["dimms"] or [])[0]
        size, speed = (module["size_bytes"] or 0) >> 30, module["configured_mt_s"]
        condition = f"one module of {size} GiB on each memory channel, at {speed} MT/s"
        yield _make_way(condition, other, recommendation.build_entry(other, load))


def _join_modules(facts: Facts) -> Facts | None:
    """Return the facts with half as many modules of twice the size; None where one is a channel."""
    memory, name = facts["memory"], facts["cpu"].get("catalogue_name")
    row = load_catalogue().find_cpu(name) if name else None
    # Facts that others recorded may lack any of them.
    dimms, channels = memory.get("dimms") or [], memory.get("channels_total")
    bandwidth = memory.get("bandwidth_bytes_per_s")
    if row is None or not channels or len(dimms) != 2 * channels or not bandwidth:
        return None
    one, most = dimms[0], row.memory_mt_s_max or row.memory_mt_s
    slow, speed = one.get("configured_mt_s"), min(one.get("speed_mt_s") or 0, most or 0)
    if not slow or not one.get("size_bytes") or speed <= slow:
        return None
    larger = copy.deepcopy(facts)
    module: DimmFacts = {
        **one,
        "size_bytes": 2 * (one["size_bytes"] or 0),
        "configured_mt_s": speed,
    }
    larger["memory"]["dimms"] = [module] * channels
    known = bandwidth.get("theoretical")
    faster = known and known * speed // slow
    larger["memory"]["bandwidth_bytes_per_s"] = {"measured": None, "theoretical": faster}
    return larger


def _list_lanes(target: CheckedTarget, load: Load | None, judge: Judge) -> Iterator[Way]:
    """Try all lanes for every card: a slot may have fewer, or share them with another."""
    complete = _give_all_lanes(target["facts"])
    if complete is None:
        return
    other = judge(complete, {})
    if is_possible(other) and (_is_faster(other, target) or _answers_sooner(other, target)):
        pairs = zip(complete["gpus"], target["facts"]["gpus"], strict=True)
        link = next(there.get("pcie") or {} for there, here in pairs if there != here)
        lanes = f"PCIe {link.get('gen_max')} x{link.get('width')}"
        condition = f"{lanes} for each card (a slot of its own, not divided)"
        yield {
            **_make_way(condition, other, recommendation.build_entry(other, load)),
            "ttft_s": other["plan"]["throughput"]["ttft_s"],
        }


def describe_lanes(target: CheckedTarget, judge: Judge) -> Assumption | None:
    """Describe what half the lanes would cost, where a sheet does not name them and it decides."""
    facts = target["facts"]
    if f"gpus[0].{spec.PCIE_LANES}" not in (facts.get("origins") or {}):
        return None
    # Cards that are linked, and those that stand alone, exchange little over their slots.
    card = load_catalogue().find_gpu(get_gpu_name(facts["gpus"][0]) or "")
    if len(facts["gpus"]) < _MIN_CARDS or target["plan"]["hybrid"] or not card or card.nvlink_gb_s:
        return None
    halved = copy.deepcopy(facts)
    for gpu in halved["gpus"]:
        link = gpu.get("pcie") or {}
        link["width"] = (link.get("width_max") or _ALL_LANES) // 2
    other = judge(halved, {})
    if not is_possible(other) or not _answers_sooner(target, other):
        return None
    there, here = (one["plan"]["throughput"]["ttft_s"]["expected"] for one in (other, target))
    value = (
        f"{_ALL_LANES} for each card; with {_ALL_LANES // 2}, as a divided slot has them, the "
        f"first token takes {format_figure(there)} s in place of {format_figure(here)} s"
    )
    return {"what": "PCIe lanes", "value": value, "source": "assumed; ask the seller"}


def _give_all_lanes(facts: Facts) -> Facts | None:
    """Return the facts with every lane of each card; None where no card lacks any."""
    complete = copy.deepcopy(facts)
    for gpu in complete["gpus"]:
        link = gpu.get("pcie")
        if link:
            # The generation is the board's: lanes of the card's own would need another one.
            link["width"] = link.get("width_max") or link.get("width")
    return complete if complete["gpus"] != facts["gpus"] else None


def _answers_sooner(other: CheckedTarget, target: CheckedTarget) -> bool:
    here, there = target["plan"]["throughput"]["ttft_s"], other["plan"]["throughput"]["ttft_s"]
    return (here["expected"] or 0) > other_settings.MIN_GAIN * (there["expected"] or math.inf)


def _is_faster(other: CheckedTarget, target: CheckedTarget) -> bool:
    here, there = target["plan"]["throughput"], other["plan"]["throughput"]
    return any(
        (new or 0) > other_settings.MIN_GAIN * (old or 0)
        for new, old in (
            (there["single_tok_s"]["expected"], here["single_tok_s"]["expected"]),
            (there["decode_tok_s"]["expected"], here["decode_tok_s"]["expected"]),
        )
    )


def _list_joined(target: CheckedTarget, load: Load | None, judge: Judge) -> Iterator[Way]:
    """Try two and four joined machines, where one holds fewer requests than there are."""
    facts, sizing = target["facts"], target["sizing"]
    alone = recommendation.build_entry(target, load)
    many = len(facts["gpus"])
    if facts.get("group") or not many or target["plan"]["hybrid"] or load is None or sizing is None:
        return
    most = sizing["most_requests"]
    if not is_possible(target) or load.users is None or (most is not None and most >= load.users):
        return
    best: Way | None = None
    for together in _JOINED:
        link: LinkFacts = {**_LINK, "count": many}
        joined = copy.deepcopy(facts)
        joined["group"] = {"hosts": together, "link": link}
        way = _judge_joined(judge(joined, {}), load, f"joined by {links.format_link(link)}")
        if way is not None and _is_cheaper(way, best or alone):
            best = way
    if best is not None:
        yield best


def _judge_joined(other: CheckedTarget, load: Load, condition: str) -> Way | None:
    entry = recommendation.build_entry(other, load)
    if not is_possible(other) or entry["machines"] is None:
        return None
    return _make_way(condition, other, entry)


def _is_cheaper(way: Way, other: Way | RankedTarget) -> bool:
    if way["usd_per_hour"] is None or other["usd_per_hour"] is None:
        return other["machines"] is None
    return way["usd_per_hour"] < other["usd_per_hour"]


def _make_way(condition: str, other: CheckedTarget, entry: RankedTarget) -> Way:
    speed = other["plan"]["throughput"]
    many = demand.count_requests_at_once(other["plan"], other["sizing"])
    row = curves.find_row(other["curve"], many)
    return {
        "condition": condition,
        "hosts": hosts.count_target_hosts(other),
        "pace": other["pace"],
        "pace_alone": entry.get("pace_alone"),
        "machines": entry["machines"],
        "usd_per_hour": entry["usd_per_hour"],
        "requests": many,
        "single_tok_s": speed["single_tok_s"],
        "decode_tok_s": row["decode_tok_s"] if row else speed["decode_tok_s"],
    }
