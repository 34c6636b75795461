"""Other ways to serve with such machines: a firmware's setting, larger modules, several joined.

Each is planned by itself, and kept where it is faster or cheaper than the machine as it stands.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.contract.cpu_lists import format_list, parse_list
from kimi_prov.facts import links
from kimi_prov.show.report import hosts, recommendation
from kimi_prov.show.report.findings import is_on_paper, is_possible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kimi_prov.contract.documents.check import CheckedTarget, RankedTarget, Way
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.machine import DimmFacts, NodeFacts
    from kimi_prov.contract.documents.facts.quote import LinkFacts
    from kimi_prov.sizing.load import Load

    Judge = Callable[[Facts], CheckedTarget]

# A smaller gain lies within the error of the estimates.
_MIN_GAIN = 1.1
_JOINED = (2, 4)
# The network that vendors of such machines offer: a port of this rate for each GPU.
_LINK: LinkFacts = {"kind": "infiniband", "speed_bits_per_s": 400_000_000_000, "count": 1}


def list_ways(target: CheckedTarget, load: Load | None, judge: Judge) -> list[Way]:
    """Return the ways that are better than the machine as its sheet has it."""
    if not is_on_paper(target):
        return []
    return [
        *_list_firmware(target, load, judge),
        *_list_modules(target, load, judge),
        *_list_joined(target, load, judge),
    ]


def _list_firmware(target: CheckedTarget, load: Load | None, judge: Judge) -> Iterator[Way]:
    """Try one NUMA node for each socket: pools of threads need nodes that divide evenly."""
    merged = _merge_nodes(target["facts"])
    if merged is None:
        return
    other = judge(merged)
    if is_possible(other) and _is_faster(other, target):
        condition = "one NUMA node for each socket (firmware: SNC off, or NPS1)"
        yield _make_way(condition, other, recommendation.build_entry(other, load))


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
    other = judge(larger)
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


def _is_faster(other: CheckedTarget, target: CheckedTarget) -> bool:
    here, there = target["plan"]["throughput"], other["plan"]["throughput"]
    return any(
        (new or 0) > _MIN_GAIN * (old or 0)
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
        way = _judge_joined(judge(joined), load, f"joined by {links.format_link(link)}")
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
    return {
        "condition": condition,
        "hosts": hosts.count_target_hosts(other),
        "pace": other["pace"],
        "pace_alone": entry.get("pace_alone"),
        "machines": entry["machines"],
        "usd_per_hour": entry["usd_per_hour"],
        "requests": speed["concurrency"],
        "single_tok_s": speed["single_tok_s"],
        "decode_tok_s": speed["decode_tok_s"],
    }
