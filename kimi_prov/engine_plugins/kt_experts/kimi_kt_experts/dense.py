"""Dense weights in int8 by the own kernel: KIMI_DENSE=int8.

Attention's projections, shared experts, dense layers and the head. Routers, norms, embeddings, a
vision tower and kv_b_proj, which attention takes apart and never calls, stay as they are.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

from kimi_kt_experts.kernel import CHUNK, Dense, takes_dense
from kimi_kt_experts.native_experts import library

if TYPE_CHECKING:
    from kimi_kt_experts.kernel import Library

log = logging.getLogger("vllm.kimi_kt_experts")
_TAKEN = re.compile(
    r"(?:^|\.)layers\.\d+\.(?:"
    r"self_attn\.(?:fused_qkv_a_proj|q_a_proj|kv_a_proj_with_mqa|q_b_proj|q_proj|qkv_proj|o_proj)|"
    r"mlp\.(?:shared_experts\.)?(?:gate_up_proj|down_proj))$|(?:^|\.)lm_head$"
)


class Matrix(Dense):
    """A dense matrix, for tensors."""

    def __init__(self, kernel: Library, weight: torch.Tensor) -> None:
        """Lay a bf16 weight out."""
        rows, columns = weight.shape
        weight = weight.detach().contiguous()
        super().__init__(kernel, weight.data_ptr(), rows, columns)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply tokens with it: bf16, rounded as torch's own products are."""
        flat = x.reshape(-1, self.columns).contiguous()
        out = torch.empty((flat.shape[0], self.rows), dtype=torch.bfloat16)
        for start in range(0, flat.shape[0], CHUNK):
            part, into = flat[start : start + CHUNK], out[start : start + CHUNK]
            self.compute(len(part), part.data_ptr(), into.data_ptr())
        return out.reshape(*x.shape[:-1], self.rows)


class Int8Method(QuantizeMethodBase):  # type: ignore[misc]
    """Takes the place of a layer's own method once its weights are loaded."""

    supports_pre_processed_weights = True

    def __init__(self, matrix: Matrix) -> None:
        """Compute by `matrix`."""
        self.matrix = matrix

    def create_weights(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Nothing: the layer has had its weights."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Nothing: the weights are where they are computed."""

    def apply(
        self,
        layer: torch.nn.Module,  # noqa: ARG002
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return a layer's output."""
        found = self.matrix(x)
        return found if bias is None else found + bias


def hold(model: torch.nn.Module) -> None:
    """Lay a loaded model's dense weights out in int8, and give their bf16 memory back.

    A head that shares its weights with the embeddings stays.
    """
    kernel = library()
    shared = [m.weight for n, m in model.named_modules() if n.rpartition(".")[2] == "embed_tokens"]
    before = after = count = 0
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if (
            not _TAKEN.search(name)
            or not isinstance(weight, torch.Tensor)
            or weight.dtype != torch.bfloat16
            or weight.dim() != 2
            or not takes_dense(*weight.shape)
            or any(weight is other for other in shared)
        ):
            continue
        matrix = Matrix(kernel, weight)
        before, after, count = before + 2 * weight.numel(), after + matrix.size, count + 1
        module.quant_method = Int8Method(matrix)
        module.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)
    log.info(
        "dense weights in int8 by the own kernel for %s: %d matrices, %.2f GB, in bf16 %.2f GB",
        kernel.build,
        count,
        after / 1e9,
        before / 1e9,
    )
