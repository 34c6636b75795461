"""vLLM's own INT4 experts for Kimi: three gates that are narrower than what the kernel can do.

The kernel computes groups of 32 and any routing (the router chooses before it), and its code for
AVX512_BF16 needs no AMX. Right, and dear: 0.78 bytes a weight, repacked at every start.
"""

from __future__ import annotations

import logging

from vllm.model_executor.layers.fused_moe.config import RoutingMethodType
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUExpertsInt4
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    QuantKey,
    kInt4Static,
    kInt4Static32GroupScale,
)
from vllm.scalar_type import scalar_types

log = logging.getLogger("vllm.kimi_kt_experts")


def open_int4() -> None:
    """Let vLLM's INT4 experts take Kimi's layers."""
    groups_of_32 = QuantKey(scalar_types.uint4b8, kInt4Static32GroupScale, symmetric=True)
    schemes = {(kInt4Static, None), (groups_of_32, None)}
    routings = [*RoutingMethodType]

    def scheme(weight_key: QuantKey | None, activation_key: QuantKey | None) -> bool:
        return (weight_key, activation_key) in schemes

    def routing(method: RoutingMethodType, *_: object) -> bool:
        return method in routings

    CPUExpertsInt4._supports_quant_scheme = staticmethod(scheme)
    CPUExpertsInt4._supports_routing_method = staticmethod(routing)
    CPUExpertsInt4._supports_current_device = staticmethod(lambda: True)
    log.info("vLLM's own INT4 experts take groups of 32 and Kimi's routing")
