"""One layer of INT4 experts by kt-kernel, through the library itself: no server and no GPU.

The engine's own Python runs this. The caller imports the packages and passes them in.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The number of weights that share a scale in Kimi's native INT4.
GROUP = 32
# Kernels read these by their address at every pass: they must live as long as the kernel.
_REFERENCES: list[Any] = []


@dataclass(frozen=True)
class Shape:
    """A layer: number of experts, experts a token, model width, expert width, tokens at most."""

    experts: int
    top_k: int
    hidden: int
    width: int
    tokens: int

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of an expert's three matrices, by name."""
        across, back = (self.width, self.hidden), (self.hidden, self.width)
        return {"gate": across, "up": across, "down": back}


def start_pool(extension: Any, nodes: Sequence[int], threads: int) -> Any:  # noqa: ANN401
    """Start kt-kernel's threads, distributed over the NUMA nodes as its server does."""
    each, more = divmod(threads, len(nodes))
    wanted = extension.WorkerPoolConfig()
    wanted.subpool_count = len(nodes)
    wanted.subpool_numa_map = list(nodes)
    wanted.subpool_thread_count = [each + (number < more) for number in range(len(nodes))]
    return extension.CPUInfer(wanted)


def build_configuration(kt_kernel: Any, torch: Any, pool: Any, shape: Shape, index: int = 0) -> Any:  # noqa: ANN401
    """Return the configuration of a layer whose experts are all computed by the CPU."""
    on_gpu = torch.zeros(shape.experts, dtype=torch.bool)
    _REFERENCES.append(on_gpu)
    config = kt_kernel.kt_kernel_ext.moe.MOEConfig(
        shape.experts, shape.top_k, shape.hidden, shape.width, on_gpu.data_ptr()
    )
    config.layer_idx, config.pool, config.max_len = index, pool.backend_, shape.tokens
    return config


def load(
    kt_kernel: Any,  # noqa: ANN401
    torch: Any,  # noqa: ANN401
    pool: Any,  # noqa: ANN401
    shape: Shape,
    weights: Mapping[str, Sequence[tuple[Any, Any]]],
) -> Any:  # noqa: ANN401
    """Return the kernel that kt-kernel picks for this CPU, with the weights in its own buffers.

    `weights`: for each matrix the packed values and the scales of every expert. They are copied,
    so experts may share them.
    """
    config = build_configuration(kt_kernel, torch, pool, shape)
    config.quant_config.bits, config.quant_config.group_size = 4, GROUP
    config.quant_config.zero_point = False
    for name, made in weights.items():
        setattr(config, name + "_projs", [[packed.data_ptr() for packed, _ in made]])
        setattr(config, name + "_scales", [[scales.data_ptr() for _, scales in made]])
    kernel = import_module("kt_kernel.utils.amx")._select_rawint4_backend(GROUP)(config)
    order = torch.arange(shape.experts, dtype=torch.int64)
    pool.submit(kernel.load_weights_task(order.data_ptr()))
    pool.sync()
    return kernel


def compute_layer(
    torch: Any,  # noqa: ANN401
    pool: Any,  # noqa: ANN401
    kernel: Any,  # noqa: ANN401
    tokens: Any,  # noqa: ANN401
    chosen: Any,  # noqa: ANN401
    shares: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Compute the layer for tokens (bfloat16), each with its chosen experts and their shares."""
    count = torch.tensor([len(tokens)], dtype=torch.int32)
    out = torch.empty_like(tokens)
    places = [t.data_ptr() for t in (chosen, shares, tokens, out)]
    pool.submit(kernel.forward_task(count.data_ptr(), chosen.shape[1], *places, False))
    pool.sync()
    return out


def compute_reference(
    torch: Any,  # noqa: ANN401
    weights: Mapping[str, Any],
    tokens: Any,  # noqa: ANN401
    chosen: Any,  # noqa: ANN401
    shares: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Compute the same in float32: down(silu(gate(x)) * up(x)) of each token's experts, weighted.

    `weights`: for each matrix every expert's own.
    """
    out = torch.zeros_like(tokens)
    for row, token in enumerate(tokens):
        for expert, share in zip(chosen[row].tolist(), shares[row]):
            gate, up, down = (weights[name][expert].float() for name in ("gate", "up", "down"))
            inner = torch.nn.functional.silu(gate @ token) * (up @ token)
            out[row] += share * (down @ inner)
    return out
