"""Synthetic models of the Kimi K2 architecture with random weights, for the lab.

The tiny model has the same parts in small: MLA attention, one dense layer and two with routed and
shared experts, safetensors in shards. The cut model has a few of Kimi K2's own layers and fills a
GPU; with a vision tower it is a cut Kimi K2.5. The code needs only the standard library and writes
the same bytes every time, so that a manifest can be pinned and a changed byte be found. The answers
have no meaning, but the models load, serve and page like Kimi.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kimi_prov.lab import tokenizer
from kimi_prov.lab.model_config import format_json, make_config_files
from kimi_prov.lab.model_shapes import TINY
from kimi_prov.lab.model_tensors import make_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from kimi_prov.lab.model_shapes import Experts, Shape
    from kimi_prov.lab.model_tensors import Tensor


# A part of a file: bytes, or the number of zeros that the disk need not hold.
_Part = bytes | memoryview | int


def make_model(
    dest: Path,
    experts: Experts = "bf16",
    shape: Shape = TINY,
    values: Mapping[str, bytes] | None = None,
) -> Path:
    """Write the model and its `kimi-manifest.json` into `dest`, which is created; 0644 each.

    `experts`: how the routed experts are written. `int4` is Kimi's native format
    (compressed-tensors, groups of 32), `dequantised` the very same values as bfloat16. `hollow` is
    the native format with every expert zero, left out of the file: 61 of Kimi K2's layers are read
    as 595 GB and take 24 of the disk, and 25 of memory while they are made. A manifest, which would
    be a hash of all that, is not written with it.
    `values`: bytes of tensors by name, in place of random values.
    Raises ValueError for an unknown name, or values of another size.
    """
    dest.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, parts in _make_files(experts, shape, values or {}):
        _write_file(dest / name, parts)
        if experts != "hollow":
            size, digest = (dest / name).stat().st_size, hashlib.sha256()
            for part in parts:
                # This format has no holes.
                digest.update(bytes(part))
            rows.append({"path": name, "size": size, "sha256": digest.hexdigest()})
    if rows:
        rows.sort(key=lambda row: str(row["path"]))
        manifest = format_json({"schema": "kimi-prov/manifest/v1", "files": rows})
        _write_file(dest / "kimi-manifest.json", [manifest])
    return dest


def write_tensors(path: Path, tensors: list[Tensor]) -> None:
    """Write one file of safetensors; what a tensor leaves out takes no room."""
    _write_file(path, _make_safetensors(tensors))


def _write_file(path: Path, parts: Iterable[_Part]) -> None:
    with path.open("wb") as file:
        for part in parts:
            if isinstance(part, int):
                file.seek(part, os.SEEK_CUR)
            else:
                file.write(part)
        file.truncate()
    path.chmod(0o644)


def _make_files(
    experts: Experts, shape: Shape, values: Mapping[str, bytes]
) -> Iterator[tuple[str, list[_Part]]]:
    """Give each file's name and the parts of its content, one shard of the weights at a time."""
    for name, data in (*make_config_files(experts, shape), *tokenizer.make_files().items()):
        yield name, [data]
    yield from _make_shards(experts, shape, values)


def _replace_values(tensors: Iterable[Tensor], values: Mapping[str, bytes]) -> Iterator[Tensor]:
    """Replace the values of tensors by the given ones."""
    left = dict(values)
    for tensor in tensors:
        if tensor.name not in left:
            yield tensor
            continue
        data = left.pop(tensor.name)
        if len(data) != tensor.size:
            raise ValueError(f"{tensor.name}: {tensor.size} bytes expected, not {len(data)}")
        yield replace(tensor, data=data, hole=0)
    if left:
        raise ValueError(f"the model has no tensor {', '.join(sorted(left))}")


def _make_shards(
    experts: Experts, shape: Shape, values: Mapping[str, bytes]
) -> Iterator[tuple[str, list[_Part]]]:
    """Return the shards and their index."""
    shards: list[list[Tensor]] = [[]]
    size = 0
    for tensor in _replace_values(make_tensors(experts, shape), values):
        if shards[-1] and size + tensor.size > shape.shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    index = {
        "metadata": {"total_size": sum(_sum_sizes(shard) for shard in shards)},
        "weight_map": {
            tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        },
    }
    for name, shard in zip(names, shards, strict=True):
        yield name, _make_safetensors(shard)
    yield "model.safetensors.index.json", [format_json(index)]


def _sum_sizes(tensors: list[Tensor]) -> int:
    return sum(tensor.size for tensor in tensors)


def _make_safetensors(tensors: list[Tensor]) -> list[_Part]:
    """Return a file of the format: the header's length, the header as JSON, the bytes in order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return [len(text).to_bytes(8, "little") + text, *(t.hole or t.data for t in tensors)]
