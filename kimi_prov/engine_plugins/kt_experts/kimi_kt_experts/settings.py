"""What the environment says. Everything has a default, so that the plugin also runs by hand."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_kt_experts.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MODES = ("native", "kt", "vllm", "off")
DENSE = ("bf16", "int8")
STEPS = ("native", "vllm")
# kt-kernel cuts an expert's width into as many slices as there are pools.
POOLS = (1, 2, 4, 8)
_NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True)
class Settings:
    """`nodes`: NUMA nodes with a pool each; `threads`: of all pools together.

    `chunk`: tokens in one call; `keep`: leave the checkpoint in the page cache after loading;
    `idle`: pool threads give way to vLLM's wherever both want a core.
    """

    nodes: tuple[int, ...]
    threads: int
    chunk: int = 1024
    keep: bool = False
    idle: bool = True


def mode(environ: Mapping[str, str]) -> str:
    """Who computes the experts: `native`, `kt`, `vllm` or `off`."""
    found = environ.get("KIMI_EXPERTS", "native")
    if found not in MODES:
        raise Refusal(f"KIMI_EXPERTS is {found!r}", f"one of {', '.join(MODES)}")
    return found


def dense(environ: Mapping[str, str]) -> str:
    """How dense weights are held: `bf16`, as loaded, or `int8`, by the own kernel."""
    found = environ.get("KIMI_DENSE", "bf16")
    if found not in DENSE:
        raise Refusal(f"KIMI_DENSE is {found!r}", f"one of {', '.join(DENSE)}")
    if found == "int8" and mode(environ) not in ("native", "kt"):
        raise Refusal(
            f"KIMI_DENSE is int8 and KIMI_EXPERTS {mode(environ)}",
            "KIMI_EXPERTS native or kt",
            "leave KIMI_DENSE away",
        )
    return found


def step(environ: Mapping[str, str]) -> str:
    """Who computes decode steps: `native`, all layers in one call where that can be, or `vllm`."""
    found = environ.get("KIMI_STEP", "native")
    if found not in STEPS:
        raise Refusal(f"KIMI_STEP is {found!r}", f"one of {', '.join(STEPS)}")
    return found


def read(environ: Mapping[str, str], sys_nodes: Path = _NODES) -> Settings:
    """Read the settings; without a node list all nodes that divide evenly are used.

    Two cores of each node stay free: pools that spin on every core are 2.4 to 6 times slower.
    """
    nodes = _list("KIMI_KT_NODES", environ) or _all_nodes(sys_nodes)
    if len(nodes) not in POOLS:
        raise Refusal(
            f"KIMI_KT_NODES names {len(nodes)} nodes", f"{', '.join(map(str, POOLS))} of them"
        )
    threads = _number("KIMI_KT_THREADS", environ) or len(nodes) * max(
        1, min(len(core_cpus(node, None, sys_nodes)) for node in nodes) - 2
    )
    if threads < len(nodes):
        raise Refusal(f"KIMI_KT_THREADS is {threads}", f"one for each of {len(nodes)} pools")
    return Settings(
        nodes=nodes,
        threads=threads,
        chunk=_number("KIMI_KT_CHUNK", environ) or Settings.chunk,
        keep=environ.get("KIMI_KT_KEEP_CACHE") == "1",
        idle=environ.get("KIMI_KT_IDLE", "1") == "1",
    )


def parse_list(text: str) -> tuple[int, ...]:
    """Read the kernel's form of a list: `0-3,8`."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return tuple(found)


def _all_nodes(sys_nodes: Path) -> tuple[int, ...]:
    try:
        nodes = parse_list((sys_nodes / "has_cpu").read_text())
    except OSError:
        return (0,)
    return nodes[: max(n for n in POOLS if n <= len(nodes))]


def find_nodes(cpus: Sequence[int], sys_nodes: Path = _NODES) -> list[int]:
    """Give by CPU its NUMA node, below zero where that is not known."""
    of = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in sys_nodes.glob("node[0-9]*")
        for cpu in parse_list((folder / "cpulist").read_text())
    }
    return [of.get(cpu, -1) for cpu in cpus]


def core_cpus(node: int, allowed: set[int] | None = None, sys_nodes: Path = _NODES) -> set[int]:
    """One CPU of each physical core of a node; of those `allowed`, where given."""
    try:
        cpus = parse_list((sys_nodes / f"node{node}" / "cpulist").read_text())
    except OSError:
        if node == 0 and not sys_nodes.exists():
            cpus = tuple(range(os.cpu_count() or 1))
        else:
            raise Refusal(f"there is no NUMA node {node}", "a node of this machine") from None
    first: dict[str, int] = {}
    for cpu in cpus:
        if allowed is None or cpu in allowed:
            first.setdefault(_siblings(cpu), cpu)
    return set(first.values())


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else str(cpu)


def _list(name: str, environ: Mapping[str, str]) -> tuple[int, ...]:
    try:
        return parse_list(environ.get(name, ""))
    except ValueError:
        raise Refusal(f"{name} is {environ[name]!r}", "node numbers such as 0,1") from None


def _number(name: str, environ: Mapping[str, str]) -> int | None:
    text = environ.get(name, "")
    if text and (not text.isdecimal() or int(text) == 0):
        raise Refusal(f"{name} is {text!r}", "a whole number above zero")
    return int(text) if text else None
