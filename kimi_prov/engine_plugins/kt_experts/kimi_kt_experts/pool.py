"""kt-kernel: its thread pools, and a layer of experts in its buffers."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kimi_kt_experts.settings import core_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_kt_experts.checkpoint import Layer, Mapping
    from kimi_kt_experts.settings import Settings

log = logging.getLogger("vllm.kimi_kt_experts")
GROUP = 32


class Pools:
    """One pool of threads for each NUMA node; made once a process, never ended."""

    def __init__(self, settings: Settings) -> None:
        import kt_kernel  # noqa: PLC0415 - chooses its build for this CPU when imported
        from kt_kernel import kt_kernel_ext as ext  # noqa: PLC0415

        self.settings = settings
        self.variant: str = kt_kernel.__cpu_variant__
        count = len(settings.nodes)
        config = ext.WorkerPoolConfig()
        config.subpool_count = count
        config.subpool_numa_map = list(settings.nodes)
        config.subpool_thread_count = [
            settings.threads // count + (pool < settings.threads % count) for pool in range(count)
        ]
        before = _threads()
        with _all_cpus() as allowed, _quiet():
            self.infer = ext.CPUInfer(config)
        mine = _threads() - before
        _bind(mine, settings.nodes, allowed, os.sched_getaffinity(0))
        if settings.idle:
            _give_way(mine)
        log.info(
            "kt-kernel build %s: %d threads on NUMA node(s) %s",
            self.variant,
            settings.threads,
            ",".join(map(str, settings.nodes)),
        )

    def load(self, layer: Layer, files: Mapping, top_k: int, sizes: tuple[int, int]) -> Experts:
        """Load a layer into kt-kernel's own buffers; `sizes`: hidden size and an expert's width.

        The bytes are read where the files are mapped. While it lasts, kt-kernel holds the layer
        once more, cut into its slices.
        """
        from kt_kernel_ext import moe  # noqa: PLC0415

        config = moe.MOEConfig(layer.experts, top_k, *sizes, 0)
        config.layer_idx = layer.index
        config.pool = self.infer.backend_
        config.max_len = self.settings.chunk
        for projection in ("gate", "up", "down"):
            rows = [files.address(tensor) for tensor in layer.weights[projection]]
            scales = [files.address(tensor) for tensor in layer.scales[projection]]
            setattr(config, f"{projection}_projs", [rows])
            setattr(config, f"{projection}_scales", [scales or [0] * layer.experts])
        if layer.int4:
            config.quant_config.bits = 4
            config.quant_config.group_size = GROUP
            config.quant_config.zero_point = False
        with _quiet():
            kernel = kernel_class(layer.int4)(config)
            order = torch.arange(layer.experts, dtype=torch.int64)
            self.infer.submit(kernel.load_weights_task(order.data_ptr()))
            self.infer.sync()
        return Experts(kernel, self)


class Experts:
    """The experts of one layer, ready to compute."""

    def __init__(self, kernel: Any, pools: Pools) -> None:  # noqa: ANN401 - of the extension
        self._kernel = kernel
        # The kernel refers to the pools without owning them.
        self._pools = pools
        self._chunk = pools.settings.chunk

    @property
    def name(self) -> str:
        """Kernel's class, for the log."""
        return f"kt-kernel's {type(self._kernel).__name__}"

    def __call__(
        self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of each token's experts, bf16 like `hidden`."""
        hidden = hidden.contiguous()
        ids = ids.to(torch.int64).contiguous()
        weights = weights.to(torch.float32).contiguous()
        out = torch.empty_like(hidden)
        top_k = ids.shape[1]
        for start in range(0, hidden.shape[0], self._chunk):
            part = slice(start, start + self._chunk)
            count = torch.tensor([hidden[part].shape[0]], dtype=torch.int32)
            self._kernel.forward(
                count.data_ptr(),
                top_k,
                ids[part].data_ptr(),
                weights[part].data_ptr(),
                hidden[part].data_ptr(),
                out[part].data_ptr(),
                False,  # noqa: FBT003 - positional in the extension: do not add to what is there
            )
        return out


def kernel_class(int4: bool) -> Any:  # noqa: ANN401, FBT001 - a class of the extension
    """Choose the class that kt-kernel itself would choose on this CPU."""
    from kt_kernel.utils import amx  # noqa: PLC0415

    if int4:
        return amx._select_rawint4_backend(GROUP)
    return amx.AMXBF16_MOE if amx._HAS_BF16_SUPPORT else amx.AVX2BF16_MOE


def _threads() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


def _bind(threads: set[int], nodes: tuple[int, ...], allowed: set[int], caller: set[int]) -> None:
    """Give each thread of a pool a core of its node; never the caller's, which waits spinning.

    kt-kernel has named the threads for their node, and counts cores from the node's first.
    """
    free = {
        node: sorted(core_cpus(node, allowed) - (caller if len(caller) == 1 else set()))
        for node in nodes
    }
    for thread in sorted(threads):
        name = Path(f"/proc/self/task/{thread}/comm").read_text().split("_")
        if name[0] == "numa" and name[1].isdecimal() and (cores := free.get(int(name[1]))):
            cores.append(cores.pop(0))
            os.sched_setaffinity(thread, {cores[-1]})


def _give_way(threads: set[int]) -> None:
    """Let vLLM's threads pre-empt the pools', which spin while they wait, on the same cores.

    A pool computes while vLLM's threads sleep, so it loses nothing itself.
    """
    try:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    except OSError as error:
        log.warning("kt-kernel's threads keep their priority (%s)", error.strerror)


@contextlib.contextmanager
def _all_cpus() -> Iterator[set[int]]:
    """Undo, while threads are made, that vLLM has bound this one to a single core."""
    bound = os.sched_getaffinity(0)
    allowed: set[int] = set()
    for entry in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            allowed |= os.sched_getaffinity(int(entry.name))
    os.sched_setaffinity(0, allowed)
    try:
        yield allowed
    finally:
        os.sched_setaffinity(0, bound)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the extension prints (some lines a layer, and bytes of weights) off the log."""
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
