"""The load format `kimi_prepared`: copies what an earlier start wrote, else loads and writes.

What is kept is what a rank holds after its load and before its layers arrange it for their kernels:
its own slices, turned over. Arranging them again takes seconds on a card (making and arranging took
3.3 s of 190 for 24 layers of Kimi's size on two H200), and what kernels keep beside tensors, such
as packed copies behind handles of a library, comes into being as it does in any start.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from vllm.logger import init_logger
from vllm.model_executor.model_loader import get_model_loader, register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

import kimi_prepared_weights
from kimi_prepared_weights import copying, holdings, keys, store

if TYPE_CHECKING:
    from torch import nn

log = init_logger("vllm.kimi_prepared_weights")
_GB = 1e9
# Tensors of this size and less may have values before a load, which the load leaves as they are.
_SMALL_BYTES = 1 << 20


def register() -> None:
    """Add the load format to vLLM."""
    register_model_loader(kimi_prepared_weights.LOAD_FORMAT)(PreparedLoader)


class _Place(NamedTuple):
    """Where this rank's file lies, or will lie, and its key."""

    path: Path
    key: dict[str, object]


class PreparedLoader(BaseModelLoader):
    """Loads a rank from its file, or in the ordinary way, after which it writes the file.

    Keys of `--model-loader-extra-config`: `folder` of the files; `manifest`, the SHA-256 of the
    weights' manifest; `load_format` of the ordinary way; `way` of the copy (see copying.copy_file).
    """

    def __init__(self, load_config: Any) -> None:  # noqa: ANN401 - vLLM's LoadConfig
        super().__init__(load_config)
        extra = dict(load_config.model_loader_extra_config or {})
        self.folder = Path(str(extra.pop("folder", "")))
        self.manifest: str | None = extra.pop("manifest", None)
        self.way: str | None = extra.pop("way", None)
        ordinary = extra.pop("load_format", "auto")
        if extra or not self.folder.is_absolute():
            raise ValueError(
                "--load-format kimi_prepared needs --model-loader-extra-config with `folder`, an "
                f"absolute path; unknown keys: {', '.join(sorted(extra)) or 'none'}"
            )
        config = replace(load_config, load_format=ordinary, model_loader_extra_config={})
        self.ordinary: BaseModelLoader = get_model_loader(config)
        self._place: _Place | None = None

    def download_model(self, model_config: Any) -> None:  # noqa: ANN401
        """Leave it to the ordinary way."""
        self.ordinary.download_model(model_config)

    def load_model(
        self,
        vllm_config: Any,  # noqa: ANN401
        model_config: Any,  # noqa: ANN401
        prefix: str = "",
    ) -> nn.Module:
        """Load a rank's model; the key is made first, for a model changes its configuration."""
        self._place = self._find_place(vllm_config, model_config, prefix)
        return super().load_model(vllm_config, model_config, prefix)

    def load_weights(self, model: nn.Module, model_config: Any) -> None:  # noqa: ANN401
        """Load into a model: a new one from its file, one that serves in the ordinary way."""
        place, self._place = self._place, None
        if place is not None and self._copy(model, place):
            return
        self.ordinary.load_weights(model, model_config)
        if place is not None:
            try:
                _write(model, place)
            except OSError as error:
                log.warning("Prepared weights were not written: %s", error)

    def _find_place(
        self,
        vllm_config: Any,  # noqa: ANN401
        model_config: Any,  # noqa: ANN401
        prefix: str,
    ) -> _Place | None:
        try:
            rank = f"{keys.name_rank()}{'-' + prefix if prefix else ''}"
            key = keys.make_key(vllm_config, model_config, self.manifest)
            for name in store.remove_partial(self.folder, rank):
                log.warning("Removed %s, which a killed start left", name)
        except (OSError, ValueError) as error:
            log.warning("Weights are not prepared: %s", error)
            return None
        return _Place(store.name_file(self.folder, rank, key), key)

    def _copy(self, model: nn.Module, place: _Place) -> bool:
        """Copy the file into the model; False where there is none, or none that can be trusted."""
        before: list[tuple[torch.Tensor, torch.Tensor]] = []
        values = holdings.read_values(model)
        try:
            contents = store.read_contents(place.path, place.key)
            tensors = holdings.list_tensors(model)
            before = _remember(tensors)
            _fill(model, tensors, place.path, contents, self.way)
        except FileNotFoundError:
            log.info("There are no prepared weights for this rank yet: %s", place.path.name)
        except store.DamagedError as error:
            log.warning("Prepared weights put aside: %s: %s", place.path.name, error)
            store.put_aside(place.path)
        except Exception:  # a start that works in the ordinary way must not fail here
            log.exception("Prepared weights put aside: %s cannot be used", place.path.name)
            store.put_aside(place.path)
        else:
            return True
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
        holdings.write_values(model, values)
        return False


def _remember(tensors: list[holdings.Held]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Clone what an ordinary load might leave as it is, should the copy fail halfway."""
    return [
        (held.tensor, held.tensor.detach().clone())
        for held in tensors
        if held.tensor.nbytes <= _SMALL_BYTES or not isinstance(held.tensor, torch.nn.Parameter)
    ]


def _fill(
    model: nn.Module,
    tensors: list[holdings.Held],
    path: Path,
    contents: store.Contents,
    way: str | None,
) -> None:
    expected = holdings.describe_tensors(tensors)
    if expected != contents.tensors:
        raise store.DamagedError(_describe_difference(expected, contents.tensors))
    pieces = copying.list_pieces(holdings.list_storages(tensors), contents.blocks)
    with torch.no_grad():
        copied = copying.copy_file(path, pieces, way)
    changed = holdings.write_values(model, contents.values)
    log.info(
        "Prepared weights: %.2f GB in %.2f seconds, %.2f GB/s, %s, every sum as written; "
        "%d values set",
        copied.size / _GB,
        copied.seconds,
        copied.size / _GB / max(copied.seconds, 1e-9),
        copied.way,
        changed,
    )


def _describe_difference(expected: list[list[Any]], stored: list[list[Any]]) -> str:
    for own, theirs in zip(expected, stored, strict=False):
        if own != theirs:
            return f"{own[0]} is {own[1:]} here, {theirs[0]} {theirs[1:]} in it"
    return f"it has {len(stored)} tensors, this rank {len(expected)}"


def _write(model: nn.Module, place: _Place) -> None:
    path, key = place
    tensors = holdings.list_tensors(model)
    reason = holdings.find_unsupported(model, tensors)
    if reason is not None:
        log.warning("Weights are not prepared: %s", reason)
        return
    storages = holdings.list_storages(tensors)
    size = sum(len(storage.tensor) for storage in storages)
    free = store.count_free_bytes(path.parent)
    if size + store.CHUNK > free:
        log.warning(
            "Weights are not prepared: %s has %.2f GB free, this rank needs %.2f",
            path.parent,
            free / _GB,
            size / _GB,
        )
        return
    began = time.perf_counter()
    with store.Writer(path) as writer:
        for storage in storages:
            writer.add(storage.path, copying.read_chunks(storage.tensor))
        written = writer.finish(
            key, holdings.describe_tensors(tensors), holdings.read_values(model)
        )
    seconds = time.perf_counter() - began
    log.info(
        "Prepared weights written: %s, %.2f GB in %.2f seconds",
        path.name,
        written / _GB,
        seconds,
    )
