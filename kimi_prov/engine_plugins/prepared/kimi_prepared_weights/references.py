"""Where a model keeps tensors beside parameters and buffers, and how to put others there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from kimi_prepared_weights import holdings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Reference(NamedTuple):
    """A plain attribute, or a member of one, that is a tensor. `put` gives it another."""

    path: str
    tensor: torch.Tensor
    put: Callable[[torch.Tensor], None]


def list_registered(model: nn.Module) -> dict[str, torch.Tensor]:
    """List parameters and buffers by every name that they have."""
    parameters: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    return parameters | dict(model.named_buffers(remove_duplicate=False))


def list_references(model: nn.Module) -> list[Reference]:
    """List all places, those of one tensor each; empty tensors are of no use to a model."""
    seen: set[int] = set()
    return [
        one
        for name, module in model.named_modules()
        for leaf, value in vars(module).items()
        if leaf not in holdings.NOT_STATE and not leaf.endswith("_hooks")
        for one in _walk(f"{name}.{leaf}", value, partial(setattr, module, leaf), seen, 0)
        if one.tensor.numel()
    ]


def replace_tensors(model: nn.Module, others: Mapping[int, torch.Tensor]) -> int:
    """Put other tensors in place of those of an id; returns how many places had one."""
    places = [one for one in list_references(model) if id(one.tensor) in others]
    for one in places:
        one.put(others[id(one.tensor)])
    return len(places)


def _walk(
    path: str,
    value: Any,  # noqa: ANN401
    put: Callable[[Any], None],
    seen: set[int],
    depth: int,
) -> Iterator[Reference]:
    if isinstance(value, torch.Tensor):
        yield Reference(path, value, put)
        return
    if depth == holdings.MAX_DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    inside: list[tuple[str, Any, Callable[[Any], None]]] = []
    if isinstance(value, dict):
        inside = [(f"[{k!r}]", one, partial(value.__setitem__, k)) for k, one in value.items()]
    elif isinstance(value, list):
        inside = [(f"[{k}]", one, partial(value.__setitem__, k)) for k, one in enumerate(value)]
    elif isinstance(value, tuple):
        inside = [(f"[{k}]", one, partial(_refuse, path)) for k, one in enumerate(value)]
    elif holdings.is_part(value):
        # An object that is frozen may be filled like any other while its model is made.
        inside = [
            (f".{leaf}", one, partial(object.__setattr__, value, leaf))
            for leaf, one in holdings.list_fields(value)
        ]
    for where, one, change in inside:
        yield from _walk(f"{path}{where}", one, change, seen, depth + 1)


def _refuse(path: str, _: object) -> None:
    raise RuntimeError(f"a tensor of {path} cannot be replaced")
