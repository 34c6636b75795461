"""Run by the python of vLLM's CPU build: two ranks of one model load at once, into little room.

`race.py MODEL FOLDER` starts both, in a mount namespace of its own where it may mount. Prints a
line of JSON for each load of each rank: which files lay there then, what the rank held, and what it
said.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from kimi_prepared_weights import holdings
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.plugins import load_general_plugins

RANKS = 2


class Ear(logging.Handler):
    """Hears what the plugin says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def digest(model: torch.nn.Module) -> str:
    found = hashlib.sha256()
    for path, tensor in holdings.list_tensors(model):
        if not path.endswith(".kv_cache"):
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            found.update(f"{path} {tensor.shape}".encode() + data)
    return found.hexdigest()


class Rank:
    """One rank, which takes each step beside the other one."""

    def __init__(self, rank: int, port: str, model: str, folder: Path) -> None:
        self.rank, self.folder, self.ear = rank, folder, Ear()
        options = EngineArgs(
            model=model, tensor_parallel_size=RANKS, enforce_eager=True, max_model_len=512,
            dtype="bfloat16", trust_remote_code=True,
        )  # fmt: skip
        # As the engine's own worker for processors does.
        torch.accelerator.empty_cache = lambda: None
        load_general_plugins()
        self.config = options.create_engine_config()
        with set_current_vllm_config(self.config):
            parallel_state.init_distributed_environment(
                RANKS, rank, f"tcp://127.0.0.1:{port}", rank, "gloo"
            )
            parallel_state.initialize_model_parallel(RANKS)

    def load(self, name: str, extra: dict[str, object] | None) -> None:
        """Load as a worker of a new engine does, and tell of it once both have."""
        self.config.compilation_config.static_forward_context.clear()
        self.config.compilation_config.static_all_moe_layers.clear()
        form = "auto" if extra is None else "kimi_prepared"
        config = dataclasses.replace(
            self.config.load_config, load_format=form, model_loader_extra_config=extra or {}
        )
        self.config.load_config = config
        self.ear.said.clear()
        # To configure vLLM's logs takes a handler away that was there before.
        logging.getLogger("vllm.kimi_prepared_weights").addHandler(self.ear)
        with set_current_vllm_config(self.config):
            model = get_model_loader(config).load_model(self.config, self.config.model_config)
        held = digest(model)
        self.meet()
        files = sorted(p.name for p in self.folder.rglob("*.p*") if p.is_file())
        row = {"name": name, "rank": self.rank, "held": held, "files": files}
        sys.stdout.write(f"\nTOLD {json.dumps({**row, 'said': self.ear.said})}\n")
        sys.stdout.flush()
        self.meet()

    def meet(self) -> None:
        torch.distributed.barrier(group=parallel_state.get_world_group().cpu_group)

    def run(self, *command: str) -> None:
        """Have the first rank run a command for both."""
        if self.rank == 0:
            subprocess.run(command, check=True)
        self.meet()


def take_steps(rank: Rank) -> None:
    extra = {"folder": str(rank.folder), "manifest": "one"}
    rank.load("ordinary", None)
    rank.load("with room", extra)
    size = sum(p.stat().st_size for p in rank.folder.glob("*.prepared"))
    rank.meet()
    # Room for one of two: each alone would find it.
    tmpfs = f"size={size * 3 // 4 + (1 << 20)}"
    rank.run("mount", "-t", "tmpfs", "-o", tmpfs, "none", str(rank.folder))
    rank.load("with room for one", extra)
    rank.run("mount", "-o", f"remount,size={2 * size + (16 << 20)}", str(rank.folder))
    rank.load("written", extra)
    rank.load("copied", extra)
    if rank.rank == 1:
        (path,) = rank.folder.glob("rank-tp1-*.prepared")
        path.rename(rank.folder / "away")
    rank.meet()
    rank.load("half", extra)
    if rank.rank == 1:
        (path,) = rank.folder.glob("rank-tp1-*.prepared")
        data = bytearray(path.read_bytes())
        data[len(data) // 2 // 4096 * 4096] ^= 1
        path.write_bytes(data)
    rank.meet()
    rank.load("damaged", extra)
    rank.load("copied again", extra)


def main() -> None:
    model, folder = sys.argv[1], Path(sys.argv[2])
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    # What is imported once is there in both.
    other = os.fork()
    take_steps(Rank(int(other != 0), port, model, folder))
    if other != 0:
        sys.exit(os.waitpid(other, 0)[1])


if __name__ == "__main__":
    main()
