"""What a rank holds: every tensor that its model reaches, and the storages behind them.

Layers keep tensors in more places than parameters and buffers: in plain attributes, and in objects
of theirs. All of them are found by one walk, which takes the same way in every process of a
version, so that paths name the same tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

# Attributes of a module that are not its own state.
NOT_STATE = frozenset({"_modules", "_parameters", "_buffers", "training"})
# Objects that belong to the process and not to the weights: groups of ranks and their buffers.
_FOREIGN = ("vllm.distributed", "vllm.config", "vllm.v1.worker")
MAX_DEPTH = 8


class Held(NamedTuple):
    """A tensor by its path."""

    path: str
    tensor: torch.Tensor


def list_tensors(model: nn.Module) -> list[Held]:
    """List every tensor that the model reaches, each once, in an order that does not change."""
    seen: set[int] = set()
    return [
        held
        for name, module in model.named_modules()
        for held in _walk_module(name, module, seen)
        if held.tensor.numel()
    ]


def _walk_module(name: str, module: nn.Module, seen: set[int]) -> Iterator[Held]:
    for part in (module._parameters, module._buffers):
        for leaf, tensor in part.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield Held(f"{name}.{leaf}", tensor)
    for leaf, value in vars(module).items():
        if leaf not in NOT_STATE and not leaf.endswith("_hooks"):
            yield from _walk(f"{name}.{leaf}", value, seen, 0)


def _walk(path: str, value: Any, seen: set[int], depth: int) -> Iterator[Held]:  # noqa: ANN401
    if isinstance(value, (nn.Module, type, str, bytes, int, float)) or id(value) in seen:
        return
    if isinstance(value, torch.Tensor):
        seen.add(id(value))
        yield Held(path, value)
        return
    if depth == MAX_DEPTH:
        return
    inside: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inside = [(f"{path}[{key!r}]", one) for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        inside = [(f"{path}[{index}]", one) for index, one in enumerate(value)]
    elif is_part(value):
        inside = [(f"{path}.{leaf}", one) for leaf, one in list_fields(value)]
    if inside:
        seen.add(id(value))
    for where, one in inside:
        yield from _walk(where, one, seen, depth + 1)


def is_part(value: object) -> bool:
    """Whether an object belongs to a model, so that its attributes count."""
    room = type(value).__module__
    return room.startswith(("vllm", "compressed_tensors")) and not room.startswith(_FOREIGN)


def list_fields(value: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
    """List what an object keeps, by name."""
    fields = list(getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        fields += [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    return fields


def describe_tensors(tensors: list[Held]) -> list[list[Any]]:
    """Describe tensors by all that has to be equal before bytes are copied into them."""
    numbers: dict[tuple[str, int], int] = {}
    rows = []
    for path, tensor in tensors:
        storage = numbers.setdefault(identify_storage(tensor), len(numbers))
        rows.append(
            [
                path,
                str(tensor.dtype),
                list(tensor.shape),
                list(tensor.stride()),
                tensor.storage_offset(),
                tensor.device.type,
                storage,
                tensor.untyped_storage().nbytes(),
            ]
        )
    return rows


def list_storages(tensors: list[Held]) -> list[Held]:
    """List the storages of tensors as bytes, each by the path of its first tensor."""
    storages: dict[tuple[str, int], Held] = {}
    for path, tensor in tensors:
        storages.setdefault(identify_storage(tensor), Held(path, _view_bytes(tensor)))
    return list(storages.values())


def identify_storage(tensor: torch.Tensor) -> tuple[str, int]:
    """Identify the memory behind a tensor, which several may share."""
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _view_bytes(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    view = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return view.set_(storage, 0, (storage.nbytes(),), (1,))


def find_unsupported(model: nn.Module, tensors: list[Held]) -> str | None:
    """Say why what a model holds cannot be kept; None where it can."""
    for path, tensor in tensors:
        if tensor.device.type not in ("cpu", "cuda"):
            return f"{path} is on {tensor.device.type}"
        if tensor.layout != torch.strided or getattr(tensor, "is_quantized", False):
            return f"{path} has the layout {tensor.layout}"
        if type(tensor) not in (torch.Tensor, nn.Parameter) and not _is_plain(tensor):
            return f"{path} is a {type(tensor).__name__}"
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "uses_meta_device", False):
            return f"{name} is quantized while it is loaded"
    return None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a class of vLLM only adds the rules of loading to a parameter."""
    return type(tensor).__module__.startswith("vllm.") and isinstance(tensor, nn.Parameter)


def read_values(model: nn.Module) -> dict[str, float | bool]:
    """Read the numbers beside tensors that a layer took from its weights, such as scales."""
    return {
        f"{name}.{leaf}": value
        for name, module in model.named_modules()
        for leaf, value in vars(module).items()
        if type(value) in (float, bool) and leaf not in NOT_STATE
    }


def write_values(model: nn.Module, values: dict[str, float | bool]) -> int:
    """Set the numbers that differ; returns how many did."""
    modules = dict(model.named_modules())
    changed = 0
    now = read_values(model)
    for path, value in values.items():
        if path in now and now[path] == value and type(now[path]) is type(value):
            continue
        name, _, leaf = path.rpartition(".")
        setattr(modules[name], leaf, value)
        changed += 1
    return changed
