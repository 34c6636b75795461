"""Run by the python of vLLM: maps what a holder gives, once by vLLM's loader and once by ours.

On a machine without GPUs: vLLM's own code lays INT4 experts out for Marlin, exports them and maps
them. In place of the GPU's machine code, which turns words over, their order is changed; tensors
travel by value. Prints a line of JSON for each way.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
import tempfile

import torch
from kimi_prepared_weights import references, resident
from load_often import describe, digest
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.fused_moe.experts.marlin_moe import MarlinExperts
from vllm.model_executor.layers.fused_moe.oracle import int_wna16
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.weight_cache import daemon, protocol
from vllm.model_executor.model_loader.weight_cache.ipc_loader import IpcModelLoader


def stand_in_for_gpu() -> None:
    """Choose what is chosen on a GPU, and do nothing where only a GPU can."""
    int_wna16._get_priority_backends = lambda: [int_wna16.WNA16MoEBackend.MARLIN]
    MarlinExperts._supports_current_device = staticmethod(lambda: True)
    int_wna16.ops.gptq_marlin_moe_repack = repack
    # On a GPU it leaves plain layers as they are.
    UnquantizedLinearMethod.process_weights_after_loading = lambda _self, _layer: None
    torch.accelerator.empty_cache = lambda: None
    torch.accelerator.current_device_index = lambda: 0


def repack(words: torch.Tensor, rows: int, columns: int, bits: int, **_: object) -> torch.Tensor:
    """Change order and shape, as Marlin's own does."""
    return words.flip(1).reshape(len(words), rows // 16, columns * bits // 2).contiguous()


def copy_config(config: object, **load: object) -> object:
    """Return the configuration of a new engine."""
    config = copy.copy(config)
    config.compilation_config = copy.copy(config.compilation_config)
    config.compilation_config.static_forward_context = {}
    config.compilation_config.static_all_moe_layers = []
    config.load_config = dataclasses.replace(config.load_config, **load)
    return config


def map_weights(kind: type, config: object, state: object) -> dict[str, object]:
    """Build a model from what the holder gave; tells what it holds, or why not."""
    extra = {"fallback": False}
    config = copy_config(config, load_format="ipc_cache", model_loader_extra_config=extra)
    loader = kind(config.load_config)
    loader._watch_daemon = lambda: None
    try:
        with set_current_vllm_config(config):
            model = loader._build_model(config, config.model_config, "", state)
    except Exception as error:  # noqa: BLE001 - what vLLM refuses is told
        return {"refused": str(error)}
    lost = [one.path for one in references.list_references(model) if one.tensor.is_meta]
    return {"lost": lost, "held": {} if lost else describe_places(model)}


def describe_places(model: torch.nn.Module) -> dict[str, str]:
    """What each tensor is by every name, those of plain attributes too."""
    places = references.list_references(model)
    return describe(model) | {f"place {one.path}": digest(one.tensor) for one in places}


def tell(name: str, **more: object) -> None:
    sys.stdout.write(f"\nTOLD {json.dumps({'name': name, **more})}\n")


def main() -> None:
    stand_in_for_gpu()
    arguments = EngineArgs(
        model=sys.argv[1],
        enforce_eager=True,
        max_model_len=512,
        dtype="bfloat16",
        trust_remote_code=True,
    )
    config = arguments.create_engine_config()
    tell(
        "registered",
        loader=type(
            get_model_loader(copy_config(config, load_format="ipc_cache").load_config)
        ).__name__,
    )
    with tempfile.NamedTemporaryFile() as meeting, set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{meeting.name}-met", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    own = copy_config(config)
    with set_current_vllm_config(own):
        loader = get_model_loader(own.load_config)
        model = loader.load_model(vllm_config=own, model_config=own.model_config)
    tell("ordinary", held=describe_places(model))
    state = protocol.WeightCacheState(*daemon.export_entries(model), {})
    tell("vLLM's own", **map_weights(IpcModelLoader, config, state))
    tell("ours", **map_weights(resident.ResidentLoader, config, state))
    # By then its method for experts is ours.
    tell("vLLM's own, with experts", **map_weights(IpcModelLoader, config, state))
    some = {name: entry for name, entry in state.entries.items() if "w2_weight_scale" not in name}
    tell(
        "a tensor less",
        **map_weights(resident.ResidentLoader, config, state._replace(entries=some)),
    )


if __name__ == "__main__":
    main()
