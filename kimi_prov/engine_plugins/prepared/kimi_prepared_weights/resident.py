"""Weights that outlive an engine: what vLLM's `preload` and `ipc_cache` lack for Kimi.

vLLM's holder keeps what a rank holds after a load, laid out for kernels, and an engine maps it.
Two things keep Kimi's INT4 out (vLLM 0.32.0 and 0.33.0). The method of packed experts does not
declare that it takes weights that are laid out already. And a router is no module: it keeps the
bias of its choice as a plain attribute, where the mapped tensor never arrives, so that every
DeepSeek-V3 model would choose experts by a tensor without memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.model_executor import model_loader
from vllm.model_executor.model_loader.weight_cache.ipc_loader import IpcModelLoader

from kimi_prepared_weights import references

if TYPE_CHECKING:
    from torch import nn

log = init_logger("vllm.kimi_prepared_weights")
LOAD_FORMAT = "ipc_cache"
# Kernels whose layout is in parameters alone, so that nothing but the kernel is made anew.
_BACKENDS = frozenset({"MARLIN", "BATCHED_MARLIN"})
_OF_EXPERTS = ("w13_weight_packed", "w2_weight_packed", "w13_weight_scale", "w2_weight_scale")


class ResidentLoader(IpcModelLoader):
    """vLLM's loader, which maps packed experts too, and tensors wherever a model keeps them."""

    def _build_model(self, *arguments: Any, **options: Any) -> nn.Module:  # noqa: ANN401
        support_experts()
        model: nn.Module = super()._build_model(*arguments, **options)
        lost = [one.path for one in references.list_references(model) if one.tensor.is_meta]
        if lost:
            raise RuntimeError(f"the holder gave no tensor for {', '.join(lost[:8])}")
        return model

    def _apply_entries(
        self,
        model: nn.Module,
        *arguments: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> None:
        before = references.list_registered(model)
        super()._apply_entries(model, *arguments, **options)
        after = references.list_registered(model)
        mapped = {
            id(tensor): after[name]
            for name, tensor in before.items()
            if name in after and after[name] is not tensor
        }
        count = references.replace_tensors(model, mapped)
        log.info("Weights of the holder put in place of %d plain attributes", count)


def register() -> None:
    """Put our loader in place of vLLM's own; its function for that would warn of it."""
    model_loader._LOAD_FORMAT_TO_MODEL_LOADER[LOAD_FORMAT] = ResidentLoader


def support_experts() -> None:
    """Have vLLM's method for packed experts take weights that are laid out for Marlin already."""
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (  # noqa: PLC0415
        compressed_tensors_moe_wna16 as packed,
    )
    from vllm.model_executor.utils import is_weights_pre_processed  # noqa: PLC0415

    method = packed.CompressedTensorsWNA16MoEMethod
    if method.supports_pre_processed_weights is not False:
        return
    arrange = method.process_weights_after_loading

    def process(self: Any, layer: nn.Module) -> None:  # noqa: ANN401
        if is_weights_pre_processed():
            _adopt_experts(self, layer)
        else:
            arrange(self, layer)

    method.process_weights_after_loading = process
    method.supports_pre_processed_weights = property(
        lambda self: self.wna16_backend.name in _BACKENDS
    )


def _adopt_experts(method: Any, layer: Any) -> None:  # noqa: ANN401
    """Do with mapped experts what vLLM does once it has laid them out."""
    lost = [name for name in _OF_EXPERTS if getattr(layer, name).is_meta]
    if lost:
        raise RuntimeError(f"the holder gave no {', '.join(lost)}")
    layer.w13_weight = layer.w13_weight_packed
    layer.w2_weight = layer.w2_weight_packed
    method._setup_kernel(layer)


def hold_rank(
    global_rank: int,
    local_rank: int,
    vllm_config: Any,  # noqa: ANN401
    *arguments: Any,  # noqa: ANN401
    **options: Any,  # noqa: ANN401
) -> None:
    """Hold one rank's weights; runs in a process of its own, which loads no plugin by itself."""
    from vllm.model_executor.model_loader.weight_cache import daemon  # noqa: PLC0415
    from vllm.plugins import load_general_plugins  # noqa: PLC0415

    load_general_plugins()
    support_experts()
    # An engine tunes its kernels itself: a run of the model here could change what is held.
    vllm_config.kernel_config.enable_flashinfer_autotune = False
    daemon._run_daemon(global_rank, local_rank, vllm_config, *arguments, **options)
