"""Run by a python with torch: keeps a small model in a file, and copies it into another one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from kimi_prepared_weights import copying, holdings, store
from torch import nn

KEY = {"of": "test"}


class Layer(nn.Module):
    """Holds tensors in each place in which layers of engines do."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(33, 7), requires_grad=False)
        self.packed = nn.Parameter(
            torch.randint(-9, 9, (5, 11), dtype=torch.int32), requires_grad=False
        )
        self.register_buffer("table", torch.randn(3).to(torch.bfloat16), persistent=False)
        self.absorbed = self.weight.clone().t()
        self.parts = [torch.randn(2), {"scale": torch.randn(4, dtype=torch.float64)}]
        # Shares the weight's memory: it is there once.
        self.view = self.weight[3:9]
        self.empty = torch.empty(0)
        self.scale_float = float(seed)


class Model(nn.Module):
    """Two layers, of which the second ties a weight to the first."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.first, self.second = Layer(seed), Layer(seed + 1)
        self.second.packed = self.first.packed
        self.large = nn.Parameter(
            torch.full((store.CHUNK // 4 + 5,), float(seed)), requires_grad=False
        )


def write(model: nn.Module, path: Path, pause: float = 0.0) -> None:
    tensors = holdings.list_tensors(model)
    with store.Writer(path) as writer:
        for storage in holdings.list_storages(tensors):
            writer.add(storage.path, copying.read_chunks(storage.tensor))
            time.sleep(pause)
        writer.finish(KEY, holdings.describe_tensors(tensors), holdings.read_values(model))


def fill(model: nn.Module, path: Path) -> str:
    """Copy the file into the model; returns what is wrong with it, or nothing."""
    try:
        contents = store.read_contents(path, KEY)
        tensors = holdings.list_tensors(model)
        if holdings.describe_tensors(tensors) != contents.tensors:
            return "other tensors"
        pieces = copying.list_pieces(holdings.list_storages(tensors), contents.blocks)
        copying.copy_file(path, pieces)
        holdings.write_values(model, contents.values)
    except store.DamagedError as error:
        return str(error)
    return ""


def is_same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(holdings.list_tensors(one), holdings.list_tensors(other), strict=True)
    return all(a.path == b.path and torch.equal(a.tensor, b.tensor) for a, b in pairs) and (
        holdings.read_values(one) == holdings.read_values(other)
    )


def kill_while_writing(folder: Path) -> list[str]:
    """Kill a writer by -9 once its file is begun; returns the files then."""
    command = [sys.executable, __file__, "--write", str(folder / "rank-tp0-k.prepared")]
    writer = subprocess.Popen(command)
    while not any(folder.glob(".*.partial")):
        time.sleep(0.02)
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    return sorted(path.suffix for path in folder.iterdir())


def main() -> None:
    if sys.argv[1] == "--write":
        write(Model(1), Path(sys.argv[2]), 600.0)
        return
    folder = Path(sys.argv[1])
    path = store.name_file(folder, "rank-tp0", KEY)
    model, other = Model(1), Model(8)
    write(model, path)
    told: dict[str, object] = {"paths": [h.path for h in holdings.list_tensors(model)]}
    told["storages"] = len(holdings.list_storages(holdings.list_tensors(model)))
    told["differ before"] = not is_same(model, other)
    told["filled"] = fill(other, path)
    told["same after"] = is_same(model, other)
    told["tied after"] = other.second.packed is other.first.packed
    told["another model"] = fill(nn.Sequential(Layer(1)), path)
    whole = path.read_bytes()
    wrong = []
    contents = store.read_contents(path, KEY)
    for block in contents.blocks:
        for at in {0, block.size // 2, block.size - 1}:
            changed = bytearray(whole)
            changed[block.offset + at] ^= 0x10
            path.write_bytes(changed)
            wrong.append(fill(Model(8), path))
    told["changed bytes"], told["noticed"] = len(wrong), sum("another sum" in w for w in wrong)
    told["killed"] = kill_while_writing(folder)
    told["removed"] = len(store.remove_partial(folder, "rank-tp0"))
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
