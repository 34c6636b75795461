"""The load format `kimi_prepared`: copies what an earlier start wrote, else loads and writes.

What is kept is what a rank holds after its load and before its layers arrange it for their kernels:
its own slices, turned over. Arranging them again takes seconds on a card (making and arranging took
3.3 s of 190 for 24 layers of Kimi's size on two H200), and what kernels keep beside tensors, such
as packed copies behind handles of a library, comes into being as it does in any start.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from vllm.logger import init_logger
from vllm.model_executor.model_loader import get_model_loader, register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

import kimi_prepared_weights
from kimi_prepared_weights import agreement, copying, holdings, keys, loaded, store, writing
from kimi_prepared_weights.writing import Target

if TYPE_CHECKING:
    from torch import nn

log = init_logger("vllm.kimi_prepared_weights")
_GB = 1e9


def register() -> None:
    """Add the load format to vLLM."""
    register_model_loader(kimi_prepared_weights.LOAD_FORMAT)(PreparedLoader)


class _Start(NamedTuple):
    """A load that makes a new model; no key where this rank cannot make one."""

    config: Any
    key: dict[str, object] | None
    prefix: str


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
        self._start: _Start | None = None

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
        self._start = _Start(vllm_config, self._make_key(vllm_config, model_config), prefix)
        return super().load_model(vllm_config, model_config, prefix)

    def load_weights(self, model: nn.Module, model_config: Any) -> None:  # noqa: ANN401
        """Load into a model: a new one from its file, one that serves in the ordinary way.

        All ranks copy, or none does: some ordinary ways need every rank. A set that lacks a file,
        or has a damaged one, never counts.
        """
        start, self._start = self._start, None
        if start is None:
            self.ordinary.load_weights(model, model_config)
            return
        target = self._find_target(start, model, model_config)
        before = _remember(model) if target else None
        if self._copy_all(start, model, target, before):
            return
        self.ordinary.load_weights(model, model_config)
        writing.write_all(start.config, model, target, before)

    def _make_key(self, vllm_config: Any, model_config: Any) -> dict[str, object] | None:  # noqa: ANN401
        try:
            return keys.make_key(vllm_config, model_config, self.manifest)
        except (OSError, ValueError) as error:
            log.warning("Weights are not prepared: %s", error)
            return None

    def _find_target(self, start: _Start, model: nn.Module, model_config: Any) -> Target | None:  # noqa: ANN401
        if start.key is None:
            return None
        key = {**start.key, "layout": keys.describe_layout(model)}
        rank = f"{keys.name_rank(model_config)}{'-' + start.prefix if start.prefix else ''}"
        try:
            for name in store.remove_partial(self.folder, rank):
                log.warning("Removed %s, which a killed start left", name)
        except OSError as error:
            log.warning("Weights are not prepared: %s", error)
            return None
        return Target(store.name_file(self.folder, rank, key), key)

    def _copy_all(
        self, start: _Start, model: nn.Module, target: Target | None, before: loaded.Before | None
    ) -> bool:
        """Copy each rank's file into its model; False where one rank cannot, and no rank has."""
        exists = target is not None and before is not None and target.path.is_file()
        answers = agreement.exchange(exists, start.config)
        if target is None or before is None or not all(answers):
            whose = "another rank" if exists else "this rank"
            log.info("There are no prepared weights for %s yet: %s", whose, target and target.path)
            return False
        copied = self._copy(model, target, before)
        if all(agreement.exchange(copied, start.config)):
            store.mark_used(target.path)
            return True
        if copied:
            log.warning("Prepared weights are not used: those of another rank are damaged")
            loaded.restore(model, before)
        return False

    def _copy(self, model: nn.Module, target: Target, before: loaded.Before) -> bool:
        """Copy the file into the model; False where it cannot be trusted."""
        try:
            contents = store.read_contents(target.path, target.key)
            _fill(model, before.tensors, target.path, contents, self.way)
        except FileNotFoundError:
            log.warning("Prepared weights are gone: %s", target.path.name)
        except store.DamagedError as error:
            log.warning("Prepared weights put aside: %s: %s", target.path.name, error)
            store.put_aside(target.path)
        except Exception:  # a start that works in the ordinary way must not fail here
            log.exception("Prepared weights put aside: %s cannot be used", target.path.name)
            store.put_aside(target.path)
        else:
            return True
        loaded.restore(model, before)
        return False


def _remember(model: nn.Module) -> loaded.Before | None:
    try:
        return loaded.remember(model)
    except Exception:  # a start that works in the ordinary way must not fail here
        log.exception("Weights are not prepared")
        return None


def _fill(
    model: nn.Module,
    tensors: list[holdings.Held],
    path: Path,
    contents: store.Contents,
    way: str | None,
) -> None:
    kept = {row[0] for row in contents.tensors}
    # What the load of the first start left as it was made is not in the file.
    chosen = [
        held for held in tensors if held.path in kept or isinstance(held.tensor, torch.nn.Parameter)
    ]
    expected = holdings.describe_tensors(chosen)
    if expected != contents.tensors:
        raise store.DamagedError(_describe_difference(expected, contents.tensors))
    pieces = copying.list_pieces(holdings.list_storages(chosen), contents.blocks)
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
