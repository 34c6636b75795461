"""What a load has written, apart from what a rank holds without one.

A model is made with tensors and numbers of its own: tables, scratch memory, settings. Their sizes
follow the requests that an engine admits. Only what the load changed depends on the weights, and
goes into a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from kimi_prepared_weights import holdings

if TYPE_CHECKING:
    from torch import nn

# Tensors of this size and less may have values before a load, which the load leaves as they are.
_SMALL_BYTES = 1 << 20


class Before(NamedTuple):
    """A model as it was made: its tensors, clones of some of them, and numbers beside them."""

    tensors: list[holdings.Held]
    clones: dict[str, torch.Tensor]
    values: dict[str, float | bool]


class Loaded(NamedTuple):
    """What a load has written."""

    tensors: list[holdings.Held]
    values: dict[str, float | bool]


def remember(model: nn.Module) -> Before:
    """Remember what a load might leave as it is."""
    tensors = holdings.list_tensors(model)
    clones = {
        held.path: held.tensor.detach().clone()
        for held in tensors
        if held.tensor.nbytes <= _SMALL_BYTES or not isinstance(held.tensor, torch.nn.Parameter)
    }
    return Before(tensors, clones, holdings.read_values(model))


def restore(model: nn.Module, before: Before) -> None:
    """Undo a copy that failed halfway, as far as an ordinary load does not."""
    with torch.no_grad():
        for held in before.tensors:
            if held.path in before.clones:
                held.tensor.copy_(before.clones[held.path])
    holdings.write_values(model, before.values)


def select_loaded(model: nn.Module, before: Before) -> Loaded:
    """Select the parameters, and of all else what the load has changed; storages go whole."""
    tensors = holdings.list_tensors(model)
    kept = {
        holdings.identify_storage(tensor)
        for path, tensor in tensors
        if isinstance(tensor, torch.nn.Parameter) or not _is_same(tensor, before.clones.get(path))
    }
    values = holdings.read_values(model)
    return Loaded(
        [held for held in tensors if holdings.identify_storage(held.tensor) in kept],
        {path: v for path, v in values.items() if before.values.get(path) != v},
    )


def _is_same(tensor: torch.Tensor, before: torch.Tensor | None) -> bool:
    if before is None or before.shape != tensor.shape or before.dtype != tensor.dtype:
        return False
    if not tensor.is_contiguous():
        tensor, before = tensor.contiguous(), before.contiguous()
    # By bytes: scratch memory may hold what is no number.
    return torch.equal(_view(tensor), _view(before))


def _view(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)
