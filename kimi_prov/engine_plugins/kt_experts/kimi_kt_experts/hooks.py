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
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from kimi_kt_experts import checkpoint, gates, preflight, settings

if TYPE_CHECKING:
    from collections.abc import Generator

    from kimi_kt_experts.pool import Experts

log = logging.getLogger("vllm.kimi_kt_experts")
_INDEX = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def install(mode: str) -> None:
    """Put the plugin between vLLM and the experts. `mode` is `kt` or `vllm`."""
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
    """Computes by kt-kernel; vLLM allocates nothing for the experts."""

    experts: Experts | None = None

    def create_weights(self, layer: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Allocate nothing: the weights live in kt-kernel's buffers."""

    def get_fused_moe_quant_config(self, layer: Any) -> Any:  # noqa: ANN401, ARG002
        """Give what vLLM asks for; nothing here reads it."""
        return FUSED_MOE_UNQUANTIZED_CONFIG

    @property
    def topk_indices_dtype(self) -> torch.dtype:
        """Give kt-kernel's type of an expert's number."""
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
    """vLLM's loader for all but the routed experts, which kt-kernel takes from the files."""

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


def load_experts(modules: dict[int, Any], layers: dict[int, checkpoint.Layer]) -> None:
    """Load layer after layer, the next one's bytes coming from the disk meanwhile."""
    from kimi_kt_experts.pool import Pools  # noqa: PLC0415 - starts threads

    chosen = settings.read(os.environ)
    preflight.memory(chosen, [layers[index] for index in modules if index in layers])
    pools = Pools(chosen)
    files = checkpoint.Mapping()
    order = sorted(modules)
    begun = time.monotonic()
    done = 0
    for place, index in enumerate(order):
        moe = modules[index].moe_config
        width = moe.intermediate_size_per_partition
        layer = preflight.layer(index, layers, moe.num_experts, width, len(chosen.nodes))
        if place == 0:
            files.ahead(layer)
        if place + 1 < len(order) and order[place + 1] in layers:
            files.ahead(layers[order[place + 1]])
        experts = pools.load(layer, files, moe.experts_per_token, (moe.hidden_dim, width))
        if not chosen.keep:
            files.drop(layer)
        modules[index].quant_method.experts = experts
        done += layer.size
        log.info(
            "experts of layer %d (%d of %d) in kt-kernel's %s: %.1f GB, %.0f s",
            index,
            place + 1,
            len(order),
            experts.name,
            done / 1e9,
            time.monotonic() - begun,
        )
    files.close()
