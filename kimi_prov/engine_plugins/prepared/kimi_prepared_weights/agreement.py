"""What the ranks of an engine tell one another: a set of files counts whole, or not at all."""

from __future__ import annotations

from typing import Any, TypeVar

import torch.distributed

T = TypeVar("T")


def exchange(own: T, vllm_config: Any) -> list[T]:  # noqa: ANN401
    """Return what each rank says. Every rank that loads this model has to ask as often."""
    group = _find_group(vllm_config)
    if group is None or group.world_size == 1:
        return [own]
    answers: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(answers, own, group=group.cpu_group)
    return answers


def _find_group(vllm_config: Any) -> Any:  # noqa: ANN401
    from vllm.distributed import parallel_state  # noqa: PLC0415

    # Of several stages only the last one loads a draft: the others would not answer.
    staged = vllm_config.parallel_config.pipeline_parallel_size > 1
    if staged and vllm_config.speculative_config is not None:
        return parallel_state._TP
    return parallel_state._WORLD
