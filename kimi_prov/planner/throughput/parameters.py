"""The fitted parameters: their meaning, value before any measurement, and the value's uncertainty.

A prior's `spread` is the standard deviation of the parameter's logarithm. Fitting weighs the rows
against the prior, so that a few rows cannot move a parameter far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Values = dict[str, float]


@dataclass(frozen=True)
class Prior:
    """Value and log-spread of one parameter before the fit, and their source."""

    value: float
    spread: float
    meaning: str


GPU: Final[dict[str, Prior]] = {
    "layer_us": Prior(90, 0.3, "us a layer of launches and small kernels, on each GPU by itself"),
    "fused": Prior(0.8, 0.2, "times layer_us for FP4 on Blackwell: all experts in one kernel"),
    "grouped": Prior(0.8, 0.2, "times layer_us with grouped attention: fewer kernels than MLA's"),
    "reduce_us": Prior(30, 0.4, "us a layer of its two all-reduces over eight GPUs with NVLink"),
    "pcie_reduce": Prior(3.0, 0.5, "times reduce_us without direct links between GPUs"),
    "amd_layer": Prior(1.6, 0.3, "times layer_us on AMD"),
    "amd_int4": Prior(1.5, 0.3, "times all of it for 4-bit integers on AMD"),
    "sglang": Prior(1.0, 0.15, "times all of it for sglang against vLLM"),
    "untuned": Prior(1.6, 0.4, "times a step of builds of 2025 outside their tuned shapes"),
    "request_us": Prior(60, 0.3, "us that each running request adds to a step of 61 layers"),
    "memory_share": Prior(0.8, 0.12, "share of the GPU's bandwidth that a step reaches"),
    "expert_share": Prior(0.15, 0.35, "share of dense FLOP/s that a prompt's experts reach"),
    "native": Prior(1.5, 0.3, "times expert_share where experts are multiplied as packed"),
    "amd_compute": Prior(0.5, 0.35, "times the FLOP/s that a prompt reaches, on AMD"),
}

CPU: Final[dict[str, Prior]] = {
    "core_gw_s": Prior(9.0, 0.2, "billion weights a second that one core's kernel takes in"),
    "crowd": Prior(
        0.2, 0.5, "each core is slower by the socket's cores over 48, to the power of this"
    ),
    "iqk": Prior(3.0, 0.4, "times core_gw_s in llama.cpp and ik_llama.cpp"),
    "unpacked": Prior(1.3, 0.2, "times longer in ik_llama.cpp where weights are not repacked"),
    "llama": Prior(1.1, 0.2, "times the reading of weights in llama.cpp"),
    "memory_share": Prior(0.65, 0.15, "share of theoretical DRAM bandwidth reached"),
    "second_socket": Prior(1.3, 0.3, "times longer to read over two sockets with a pool on each"),
    "blind": Prior(
        1.0, 0.4, "times longer than one socket alone to read, than all to compute, blind of nodes"
    ),
    "spread": Prior(
        1.7, 0.3, "times longer to read over sockets where nodes share memory and threads evenly"
    ),
    "layer_us": Prior(150, 0.4, "us a layer of operations, CPU alone, without MLA"),
    "thread_us": Prior(4, 0.4, "us a layer that each thread of a pool adds"),
    "mla": Prior(1.6, 0.15, "times as many operations in a layer with MLA"),
    "hybrid_layer_us": Prior(250, 0.4, "us a layer of hand-over between GPU and CPU"),
    "llama_layer": Prior(0.7, 0.3, "times that in llama.cpp and ik_llama.cpp"),
    "dense_share": Prior(0.5, 0.25, "share of the GPU's bandwidth that its dense part reaches"),
    "avx_gflops": Prior(55, 0.3, "GFLOP/s of one core in prefill without AMX kernels"),
    "amx_gflops": Prior(160, 0.3, "the same where the engine uses AMX"),
    "iqk_gflops": Prior(180, 0.3, "the same in ik_llama.cpp"),
    "llama_gflops": Prior(25, 0.4, "the same in llama.cpp"),
    "llama_packed": Prior(1.5, 0.3, "times that for formats that it repacks when it loads them"),
    "fill_rows": Prior(8, 0.4, "tokens of an expert at which half the time is unpacking it"),
    "offload_share": Prior(0.65, 0.2, "share of PCIe at which llama.cpp copies experts"),
    "mmq_share": Prior(0.6, 0.3, "share of dense bf16 FLOP/s of the GPU that it then reaches"),
    "layout_gw_s": Prior(80, 0.3, "billion weights a second laid out anew for GPU prefill"),
    "stream_share": Prior(0.95, 0.1, "share of PCIe bandwidth that streaming layers reaches"),
    "gpu_share": Prior(0.3, 0.4, "share of dense FLOP/s that streamed prefill reaches"),
}


def list_priors(values: dict[str, Prior]) -> Values:
    """Return the values of the parameters before the fit."""
    return {name: prior.value for name, prior in values.items()}
