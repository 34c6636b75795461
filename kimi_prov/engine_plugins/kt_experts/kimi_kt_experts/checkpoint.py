"""The routed experts of a checkpoint: where their bytes lie in its safetensors files.

Standard library alone. Nothing is copied: the files are mapped, and kt-kernel reads from there.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kimi_kt_experts.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PROJECTIONS = ("gate", "up", "down")
_NAME = re.compile(r"(?:^|\.)layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.(weight\w*)$")
_PIECE = 8 << 20
_READERS = 8


class Tensor(NamedTuple):
    """Bytes of one tensor: file, place in it, and what they are."""

    file: Path
    start: int
    size: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """The experts of a layer: for each projection one tensor an expert, scales for INT4 alone."""

    index: int
    weights: dict[str, list[Tensor]]
    scales: dict[str, list[Tensor]]

    @property
    def experts(self) -> int:
        """How many experts the layer has."""
        return len(self.weights["gate"])

    @property
    def int4(self) -> bool:
        """Whether the weights are 4-bit with scales; else they are bf16."""
        return bool(self.scales["gate"])

    @property
    def tensors(self) -> Iterable[Tensor]:
        """Give every tensor of the layer."""
        for part in (self.weights, self.scales):
            for row in part.values():
                yield from row

    @property
    def size(self) -> int:
        """Bytes in the files."""
        return sum(tensor.size for tensor in self.tensors)


def is_expert(name: str) -> bool:
    """Whether a tensor of that name belongs to a routed expert."""
    return _NAME.search(name) is not None


def header(path: Path) -> dict[str, Tensor]:
    """Read where each tensor of a safetensors file lies."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        rows = json.loads(stream.read(length))
    base = 8 + length
    return {
        name: Tensor(
            path,
            base + row["data_offsets"][0],
            row["data_offsets"][1] - row["data_offsets"][0],
            row["dtype"],
            tuple(row["shape"]),
        )
        for name, row in rows.items()
        if name != "__metadata__"
    }


def layers(files: Iterable[Path]) -> dict[int, Layer]:
    """Find the experts of all layers; refuses what is not INT4 in groups of 32, or bf16."""
    found: dict[int, dict[tuple[int, str, str], Tensor]] = {}
    for path in files:
        for name, tensor in header(path).items():
            if match := _NAME.search(name):
                layer, expert, projection, kind = match.groups()
                found.setdefault(int(layer), {})[int(expert), projection, kind] = tensor
    return {index: _layer(index, rows) for index, rows in sorted(found.items())}


def _layer(index: int, rows: dict[tuple[int, str, str], Tensor]) -> Layer:
    count = 1 + max(expert for expert, _, _ in rows)
    int4 = any(kind == "weight_packed" for _, _, kind in rows)

    def column(projection: str, kind: str) -> list[Tensor]:
        try:
            return [rows[expert, projection, kind] for expert in range(count)]
        except KeyError as missing:
            expert, projection, kind = missing.args[0]
            raise Refusal(
                f"layer {index}, expert {expert} of the checkpoint has no {projection}_proj.{kind}",
                "INT4 (compressed-tensors, weight_packed and weight_scale) or bf16 experts",
                "set KIMI_EXPERTS=off to leave the experts to vLLM",
            ) from None

    weights = {p: column(p, "weight_packed" if int4 else "weight") for p in PROJECTIONS}
    scales = {p: column(p, "weight_scale") if int4 else [] for p in PROJECTIONS}
    layer = Layer(index, weights, scales)
    _check(layer)
    return layer


def _check(layer: Layer) -> None:
    for projection in PROJECTIONS:
        for expert, weight in enumerate(layer.weights[projection]):
            wanted = ("I32", "U8") if layer.int4 else ("BF16",)
            good = weight.dtype in wanted
            if good and layer.int4:
                scale = layer.scales[projection][expert]
                good = scale.dtype == "BF16" and 2 * weight.size == 32 * (scale.size // 2)
            if not good:
                raise Refusal(
                    f"layer {layer.index}, expert {expert}, {projection}_proj of the checkpoint is "
                    f"{weight.dtype} {list(weight.shape)}",
                    "INT4 in groups of 32 with bf16 scales, or bf16",
                    "set KIMI_EXPERTS=off to leave the experts to vLLM",
                )


class Mapping:
    """The checkpoint's files in memory; pages come as they are read and go when dropped."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[int, mmap.mmap, int]] = {}
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="kt-read")

    def address(self, tensor: Tensor) -> int:
        """Where the tensor's first byte is in this process."""
        return self._open(tensor.file)[2] + tensor.start

    def ahead(self, layer: Layer) -> None:
        """Ask the kernel to read a layer's bytes, several pieces at once; returns at once."""
        for path, start, size in _spans(layer):
            handle = self._open(path)[0]
            for offset in range(start, start + size, _PIECE):
                length = min(_PIECE, start + size - offset)
                self._readers.submit(
                    os.posix_fadvise, handle, offset, length, os.POSIX_FADV_WILLNEED
                )

    def drop(self, layer: Layer) -> None:
        """Give back the pages of a layer: this process's, and the kernel's cache of them."""
        for path, start, size in _spans(layer):
            handle, mapped, _ = self._open(path)
            first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            length = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE - first
            if length > 0:
                mapped.madvise(mmap.MADV_DONTNEED, first, length)
                os.posix_fadvise(handle, first, length, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Forget the files; addresses given before are no longer valid."""
        self._readers.shutdown(cancel_futures=True)
        for handle, mapped, _ in self._files.values():
            with contextlib.suppress(BufferError):
                mapped.close()
            os.close(handle)
        self._files.clear()

    def _open(self, path: Path) -> tuple[int, mmap.mmap, int]:
        if path not in self._files:
            handle = os.open(path, os.O_RDONLY)
            # A private writable mapping is what ctypes gives an address of; nothing is written.
            mapped = mmap.mmap(handle, 0, flags=mmap.MAP_PRIVATE)
            address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
            self._files[path] = (handle, mapped, address)
        return self._files[path]


def _spans(layer: Layer) -> list[tuple[Path, int, int]]:
    """Give the layer's bytes as few ranges of files; neighbours are joined."""
    spans: list[tuple[Path, int, int]] = []
    for tensor in sorted(layer.tensors, key=lambda t: (t.file, t.start)):
        if spans:
            path, start, size = spans[-1]
            if path == tensor.file and tensor.start - (start + size) < _PIECE:
                spans[-1] = (path, start, tensor.start + tensor.size - start)
                continue
        spans.append((tensor.file, tensor.start, tensor.size))
    return spans
