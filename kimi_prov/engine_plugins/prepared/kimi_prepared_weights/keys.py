"""The key of prepared weights: everything that shapes the bytes of a rank after its load.

Nothing else is in it: sizes of requests, of the cache and of a pool of threads leave the files as
they are. What a size does shape, such as scratch memory, is not in a file (see loaded.py).
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import kimi_prepared_weights

if TYPE_CHECKING:
    from torch import nn

_MAX_HEADER = 100 << 20
# Of vLLM's many variables those whose names say that they choose a kernel, a format or a slice.
_SHAPING = re.compile(
    r"MOE|MARLIN|HUMMING|GEMM|AITER|KERNEL|HW_AGNOSTIC|FP4|FP8|INT4|WNA16|MXFP|QUANT|FUS|SHARD"
    r"|EMBED|PARTITION|WEIGHT|EXPERT"
)


def make_key(vllm_config: Any, model_config: Any, manifest: str | None) -> dict[str, object]:  # noqa: ANN401
    """Make what is known before a model is made, which may change its configuration."""
    import vllm  # noqa: PLC0415

    return {
        "plugin": kimi_prepared_weights.__version__,
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "card": _describe_device(),
        "ranks": _describe_ranks(),
        "placement": _describe_placement(vllm_config.parallel_config),
        "model": _hash(model_config.hf_config.to_dict()),
        "dtype": str(model_config.dtype),
        "quantization": [
            str(model_config.quantization),
            str(getattr(model_config, "quantization_config", None)),
        ],
        "backends": _list_backends(getattr(vllm_config, "kernel_config", None)),
        "environment": _hash_environment(),
        "weights": hash_weights(Path(model_config.model), manifest),
        "manifest": manifest,
    }


def describe_layout(model: nn.Module) -> str:
    """Hash what a model will load into: its parameters, and the classes that hold them.

    The classes say which kernels were chosen, by whatever setting or card.
    """
    parameters = [
        [name, str(one.dtype), list(one.shape), list(one.stride())]
        for name, one in model.named_parameters()
    ]
    return _hash([parameters, sorted({_describe_class(module) for module in model.modules()})])


def _describe_class(module: nn.Module) -> tuple[str, ...]:
    chosen = getattr(module, "quant_method", None)
    parts = [module, chosen, *(getattr(chosen, name, None) for name in ("kernel", "scheme"))]
    parts.append(getattr(module, "scheme", None))
    return tuple(f"{type(part).__module__}.{type(part).__qualname__}" for part in parts)


def name_rank(model_config: Any) -> str:  # noqa: ANN401
    """Name this rank of a model among all that share a folder; a draft is a model of its own."""
    ranks = "-".join(f"{kind}{rank}" for kind, rank, _ in _describe_ranks())
    return f"rank-{ranks}-{'+'.join(model_config.hf_config.architectures or ['model'])}"


def _describe_ranks() -> list[list[Any]]:
    from vllm.distributed import parallel_state  # noqa: PLC0415

    rows = []
    for kind in ("tp", "pp", "dp", "ep"):
        # vLLM makes no group of expert parallelism for models without experts.
        group = getattr(parallel_state, f"_{kind.upper()}", None)
        rows.append([kind, group.rank_in_group, group.world_size] if group else [kind, 0, 1])
    return rows


def _describe_placement(parallel: Any) -> list[str]:  # noqa: ANN401
    """Describe which experts a rank gets, and which layers."""
    copies = getattr(getattr(parallel, "eplb_config", None), "num_redundant_experts", 0)
    names = ("enable_expert_parallel", "enable_eplb", "expert_placement_strategy")
    return [*(str(getattr(parallel, name, None)) for name in names), str(copies)]


def _list_backends(config: Any) -> list[str]:  # noqa: ANN401
    """List the kernels that were asked for."""
    names = ("linear_backend", "moe_backend")
    return [f"{name}: {getattr(config, name, None)}" for name in names]


def _describe_device() -> list[str]:
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        return [torch.cuda.get_device_name(), f"{major}.{minor}", str(torch.version.cuda)]
    return [platform.machine(), torch.backends.cpu.get_cpu_capability(), _read_cpu_flags()]


def _read_cpu_flags() -> str:
    """Kernels for processors choose a layout by the instructions that these have."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return _hash(next((line for line in lines if line.startswith("flags")), ""))


def _hash_environment() -> str:
    """Hash what the environment says to vLLM about kernels, formats and slices."""
    from vllm import envs  # noqa: PLC0415

    factors = getattr(envs, "compile_factors", dict)()
    return _hash({name: value for name, value in factors.items() if _SHAPING.search(name)})


def hash_weights(folder: Path, manifest: str | None) -> str:
    """Hash the files of a model by name, size and table of tensors.

    Two trainings of one model differ in none of these. So without the digest of a manifest, which
    has the SHA-256 of each file, the time of the last change counts too.
    """
    rows = []
    for path in sorted(folder.glob("*.safetensors")):
        state = path.stat()
        changed = None if manifest else state.st_mtime_ns
        rows.append([path.name, state.st_size, changed, _hash_header(path)])
    if not rows:
        raise ValueError(f"{folder} has no *.safetensors")
    return _hash(rows)


def _hash_header(path: Path) -> str:
    with path.open("rb") as file:
        size = file.read(8)
        (length,) = struct.unpack("<Q", size)
        return hashlib.sha256(size + file.read(min(length, _MAX_HEADER))).hexdigest()


def _hash(value: Any) -> str:  # noqa: ANN401
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
