"""The fitted parameters: what each means, its value before any measurement, and how sure that is.

A prior's `spread` is the standard deviation of the parameter's logarithm. Fitting moves a
parameter only as far as rows argue against its prior, so that a few rows cannot carry it away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Values = dict[str, float]


@dataclass(frozen=True)
class Prior:
    """Value and log-spread of one parameter before the fit, and where it is from."""

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
    "request_us": Prior(60, 0.3, "us that each running request adds to a step"),
    "memory_share": Prior(0.8, 0.12, "share of the GPU's bandwidth that a step reaches"),
    "expert_share": Prior(0.15, 0.35, "share of dense FLOP/s that a prompt's experts reach"),
    "native": Prior(1.5, 0.3, "times expert_share where experts are multiplied as packed"),
    "amd_compute": Prior(0.5, 0.35, "times the FLOP/s that a prompt reaches, on AMD"),
}

CPU: Final[dict[str, Prior]] = {
    "core_gw_s": Prior(7.0, 0.2, "billion weights a second that one core's kernel takes in"),
    "memory_share": Prior(0.6, 0.2, "share of theoretical DRAM bandwidth reached"),
    "layer_us": Prior(350, 0.4, "us a layer of synchronisation, CPU alone"),
    "hybrid_layer_us": Prior(200, 0.4, "us a layer of hand-over between GPU and CPU"),
    "llama": Prior(1.4, 0.3, "times the CPU's part in llama.cpp"),
    "second_socket": Prior(1.1, 0.2, "times the CPU's part over two sockets"),
    "legacy": Prior(1.0, 0.2, "times the CPU's part in ktransformers before 0.4"),
    "avx_gflops": Prior(55, 0.3, "GFLOP/s of one core in prefill without AMX kernels"),
    "amx_gflops": Prior(160, 0.3, "the same where the engine uses AMX"),
    "llama_prefill": Prior(1.5, 0.4, "times the CPU's part of a prompt in llama.cpp"),
    "prepare_gb_s": Prior(45, 0.3, "GB/s at which the CPU hands layers over for GPU prefill"),
    "hand_over_us": Prior(150, 0.4, "us for each expert that layer-wise prefill hands over"),
    "stream_share": Prior(0.9, 0.2, "share of PCIe bandwidth that streaming layers reaches"),
    "gpu_share": Prior(0.3, 0.4, "share of dense bf16 FLOP/s that GPU prefill reaches"),
}


def priors(values: dict[str, Prior]) -> Values:
    """Return the parameters before any row was seen."""
    return {name: prior.value for name, prior in values.items()}
