"""Where vLLM 0.32 lets a plugin in: the layer of routed experts, the loader, the arguments."""

from __future__ import annotations

import functools
import logging
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from kimi_kt_experts import checkpoint, gates, preflight, settings

if TYPE_CHECKING:
    from collections.abc import Generator

    from kimi_kt_experts.native_experts import Experts as NativeExperts
    from kimi_kt_experts.pool import Experts

log = logging.getLogger("vllm.kimi_kt_experts")
_INDEX = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def install(mode: str) -> None:
    """Put the plugin between vLLM and the experts. `mode` is `native`, `kt` or `vllm`."""
    preflight.engine(mode)
    _check_arguments(mode)
    if mode == "vllm":
        gates.open_int4()
        return
    RoutedExperts.register_oot(KtRoutedExperts)
    register_model_loader("auto")(KtLoader)


def _check_arguments(mode: str) -> None:
    """Judge model and machine as soon as vLLM has read its arguments: before anything starts."""
    if hasattr(EngineArgs.create_engine_config, "__wrapped__"):
        return
    create = EngineArgs.create_engine_config

    @functools.wraps(create)
    def checked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - vLLM's own signature
        config = create(*args, **kwargs)
        preflight.model(mode, config)
        return config

    EngineArgs.create_engine_config = checked


class KtMethod(FusedMoEMethodBase):  # type: ignore[misc]
    """Computes by kt-kernel or the own kernel; vLLM allocates nothing for the experts."""

    experts: Experts | NativeExperts | None = None

    def create_weights(self, layer: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Allocate nothing: the weights live in the kernel's buffers."""

    def get_fused_moe_quant_config(self, layer: Any) -> Any:  # noqa: ANN401, ARG002
        """Give what vLLM asks for; nothing here reads it."""
        return FUSED_MOE_UNQUANTIZED_CONFIG

    @property
    def topk_indices_dtype(self) -> torch.dtype:
        """Give the kernels' type of an expert's number."""
        return torch.int64

    def apply(
        self,
        layer: Any,  # noqa: ANN401, ARG002
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,  # noqa: ANN401, ARG002
        shared_experts_input: torch.Tensor | None = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """Return the routed experts' share; the shared ones were computed before."""
        assert self.experts is not None, "experts are loaded with the model"  # noqa: S101
        return self.experts(x, topk_ids, topk_weights)


class KtRoutedExperts(RoutedExperts):  # type: ignore[misc]
    """vLLM's layer with the method above, whatever the checkpoint's quantisation."""

    def _get_quant_method(self, *_: Any, **__: Any) -> KtMethod:  # noqa: ANN401
        return KtMethod(self.moe_config)


class KtLoader(DefaultModelLoader):  # type: ignore[misc]
    """vLLM's loader for all but the routed experts, which the kernel takes from the files."""

    def _init_ep_weight_filter(self, model_config: Any) -> None:  # noqa: ANN401, ARG002
        # No expert is this process's as vLLM sees it: their weights are not even read.
        self.local_expert_ids = set()

    def get_all_weights(
        self,
        model_config: Any,  # noqa: ANN401
        model: torch.nn.Module,
    ) -> Generator[tuple[str, torch.Tensor]]:
        """Give all tensors but the routed experts'."""
        for name, tensor in super().get_all_weights(model_config, model):
            if not checkpoint.is_expert(name):
                yield name, tensor

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:  # noqa: ANN401
        """Load vLLM's part, then the experts of each layer."""
        super().load_weights(model, model_config)
        if settings.dense(os.environ) == "int8":
            from kimi_kt_experts import dense  # noqa: PLC0415 - loads the kernel

            # Before the experts, so that the bf16 weights are never in memory beside all of them.
            dense.hold(model)
        _, names, _, _ = self._prepare_weights(
            model_config.model,
            None,
            model_config.revision,
            fall_back_to_pt=False,
            allow_patterns_overrides=None,
        )
        modules = {
            int(_INDEX.search(module.layer_name)[1]): module  # type: ignore[index]
            for module in model.modules()
            if isinstance(module, KtRoutedExperts)
        }
        load_experts(modules, checkpoint.layers(sorted(map(Path, names))))
        if settings.mode(os.environ) == "native" and settings.step(os.environ) == "native":
            from kimi_kt_experts import decode_steps  # noqa: PLC0415 - loads the kernel

            decode_steps.hold(model, {i: m.quant_method.experts for i, m in modules.items()})


def load_experts(modules: dict[int, Any], layers: dict[int, checkpoint.Layer]) -> None:
    """Load layer after layer, the next one's bytes coming from the disk meanwhile."""
    present = [layers[index] for index in modules if index in layers]
    if settings.mode(os.environ) == "native":
        load = _own_kernel(present)
        # Two engines of one machine read the same files, and the kernel takes pages as it needs.
        keep = os.environ.get("KIMI_KT_KEEP_CACHE", "1") == "1"
    else:
        chosen = settings.read(os.environ)
        load, keep = _pools(chosen, present), chosen.keep
    files = checkpoint.Mapping()
    order = sorted(modules)
    begun = time.monotonic()
    done = 0
    for place, index in enumerate(order):
        if place == 0 and index in layers:
            files.ahead(layers[index])
        if place + 1 < len(order) and order[place + 1] in layers:
            files.ahead(layers[order[place + 1]])
        experts = load(index, modules[index].moe_config, layers, files)
        if not keep:
            files.drop(layers[index])
        modules[index].quant_method.experts = experts
        done += layers[index].size
        log.info(
            "experts of layer %d (%d of %d) in %s: %.1f GB, %.0f s",
            index,
            place + 1,
            len(order),
            experts.name,
            done / 1e9,
            time.monotonic() - begun,
        )
    files.close()


def _own_kernel(present: list[checkpoint.Layer]) -> Any:  # noqa: ANN401 - a function
    """Return what loads a layer into the own kernel's form: this rank's slice of each expert."""
    from kimi_kt_experts import native_experts  # noqa: PLC0415 - loads the kernel

    kernel = native_experts.library()
    rank, ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    preflight.own_memory(present, ranks)

    def load(index: int, moe: Any, layers: Any, files: checkpoint.Mapping) -> NativeExperts:  # noqa: ANN401
        width = moe.intermediate_size_per_partition * ranks
        layer = preflight.layer(index, layers, moe.num_experts, width, ranks)
        return native_experts.load(kernel, layer, files, (moe.hidden_dim, width), (rank, ranks))

    return load


def _pools(chosen: settings.Settings, present: list[checkpoint.Layer]) -> Any:  # noqa: ANN401
    """Return what loads a layer into kt-kernel's buffers, its threads started."""
    from kimi_kt_experts.pool import Pools  # noqa: PLC0415 - starts threads

    preflight.memory(chosen, present)
    pools = Pools(chosen)

    def load(index: int, moe: Any, layers: Any, files: checkpoint.Mapping) -> Experts:  # noqa: ANN401
        width = moe.intermediate_size_per_partition
        layer = preflight.layer(index, layers, moe.num_experts, width, len(chosen.nodes))
        return pools.load(layer, files, moe.experts_per_token, (moe.hidden_dim, width))

    return load
