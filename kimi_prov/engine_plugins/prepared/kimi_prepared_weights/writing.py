"""Writes the files of all ranks: room is decided once for all of them, and all count or none."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.logger import init_logger

from kimi_prepared_weights import agreement, copying, holdings, loaded, store

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

log = init_logger("vllm.kimi_prepared_weights")
_GB = 1e9
# For the first page and the table of contents, of some thousand rows.
_MARGIN = 2 << 20


class Target(NamedTuple):
    """Where this rank's file lies, or will lie, and its key."""

    path: Path
    key: dict[str, object]


class _Plan(NamedTuple):
    """What a rank would write, none where its file is there already."""

    tensors: list[holdings.Held]
    storages: list[holdings.Held]
    values: dict[str, float | bool]
    needs: int


class _Need(NamedTuple):
    """What a rank tells the others before anyone writes; not `able`: it cannot keep its weights."""

    able: bool
    needs: int
    free: int


def write_all(
    config: Any,  # noqa: ANN401
    model: nn.Module,
    target: Target | None,
    before: loaded.Before | None,
) -> None:
    """Write this rank's file, unless one of all ranks cannot or there is no room for all."""
    plan = _plan(model, target, before) if target and before else None
    need = _Need(able=False, needs=0, free=0)
    if plan is not None and target is not None:
        need = _Need(able=True, needs=plan.needs, free=_count_free(target))
    if not _is_possible(agreement.exchange(need, config), target):
        return
    with contextlib.ExitStack() as opened:
        began = time.perf_counter()
        writer = _write(opened, plan, target) if plan and target and plan.needs else None
        # A file counts once those of all ranks lie there whole.
        done = all(agreement.exchange(writer is not None or need.needs == 0, config))
        if writer is None or target is None:
            return
        if not done:
            log.warning("Prepared weights were not written: another rank could not write its own")
            return
        try:
            writer.publish()
        except OSError as error:
            log.warning("Prepared weights were not written: %s", error)
            return
    log.info(
        "Prepared weights written: %s, %.2f GB in %.2f seconds",
        target.path.name,
        writer.size / _GB,
        time.perf_counter() - began,
    )


def _plan(model: nn.Module, target: Target, before: loaded.Before) -> _Plan | None:
    try:
        kept = loaded.select_loaded(model, before)
        reason = holdings.find_unsupported(model, kept.tensors)
        storages = holdings.list_storages(kept.tensors)
    except Exception:  # a start that works must not fail here
        log.exception("Weights are not prepared")
        return None
    if reason is not None:
        log.warning("Weights are not prepared: %s", reason)
        return None
    size = _MARGIN + sum(len(storage.tensor) + store.PAGE for storage in storages)
    return _Plan(kept.tensors, storages, kept.values, 0 if target.path.exists() else size)


def _count_free(target: Target) -> int:
    try:
        return store.count_free_bytes(target.path.parent)
    except OSError as error:
        log.warning("Prepared weights are not written: %s", error)
        return 0


def _is_possible(needs_of_all: list[_Need], target: Target | None) -> bool:
    if not all(need.able for need in needs_of_all):
        if target is not None and len(needs_of_all) > 1:
            log.warning("Weights are not prepared: a rank cannot keep what it holds")
        return False
    needs, free = sum(need.needs for need in needs_of_all), min(need.free for need in needs_of_all)
    if needs > free and target is not None:
        log.warning(
            "Weights are not prepared: %s has %.2f GB free, %d ranks together need %.2f",
            target.path.parent,
            free / _GB,
            len(needs_of_all),
            needs / _GB,
        )
    return needs <= free


def _write(opened: contextlib.ExitStack, plan: _Plan, target: Target) -> store.Writer | None:
    """Write and seal the file, which has no name yet; None where it failed."""
    try:
        writer = opened.enter_context(store.Writer(target.path))
        sums: dict[torch.device, copying.Sums] = {}
        for path, storage in plan.storages:
            own = sums.setdefault(storage.device, copying.Sums(storage.device))
            writer.add(path, copying.read_chunks(storage, own))
        writer.seal(target.key, holdings.describe_tensors(plan.tensors), plan.values)
    except OSError as error:
        log.warning("Prepared weights were not written: %s", error)
        return None
    except Exception:  # a start that works must not fail here
        log.exception("Prepared weights were not written")
        return None
    return writer
