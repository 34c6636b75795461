"""The key of prepared weights: everything that shapes what a rank holds."""

from __future__ import annotations

import hashlib
import json
import platform
import struct
from pathlib import Path
from typing import Any

import torch

import kimi_prepared_weights

_MAX_HEADER = 100 << 20


def make_key(vllm_config: Any, model_config: Any, manifest: str | None) -> dict[str, object]:  # noqa: ANN401
    """Make the key. It has to be made before a load, which may change the configuration."""
    import vllm  # noqa: PLC0415

    return {
        "plugin": kimi_prepared_weights.__version__,
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "card": _describe_device(),
        "ranks": _describe_ranks(),
        "config": vllm_config.compute_hash(),
        "model": _hash(model_config.hf_config.to_dict()),
        "dtype": str(model_config.dtype),
        "quantization": str(model_config.quantization),
        "environment": _hash_environment(),
        "weights": hash_weights(Path(model_config.model), manifest),
        "manifest": manifest,
    }


def name_rank() -> str:
    """Name this rank among all that share a folder."""
    return "rank-" + "-".join(f"{kind}{rank}" for kind, rank, _ in _describe_ranks())


def _describe_ranks() -> list[list[Any]]:
    from vllm.distributed import parallel_state  # noqa: PLC0415

    rows = []
    for kind in ("tp", "pp", "dp", "ep"):
        # vLLM makes no group of expert parallelism for models without experts.
        group = getattr(parallel_state, f"_{kind.upper()}", None)
        rows.append([kind, group.rank_in_group, group.world_size] if group else [kind, 0, 1])
    return rows


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
    """Hash what the environment says to vLLM about kernels."""
    from vllm import envs  # noqa: PLC0415

    factors = getattr(envs, "compile_factors", None)
    return _hash(factors()) if factors else ""


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
