"""Resident weights on real cards: one command, made for a short loan.

    python3 tests/gpu/resident.py --output DIR --model MODEL --python ENVIRONMENT/bin/python

For each `--ranks`: an engine of an ordinary load tells the SHA-256 of every parameter, buffer and
plain attribute of each rank, and its answers; a holder keeps the weights; an engine that maps them
tells the same. Then a server that maps them answers, is killed, starts again, and goes on when the
holder is killed; then both start again. Rows are printed and kept as those of `loaders.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loaders
from loaders import Engine, Results, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPTS = [[5, 9, 77, 300, 12], list(range(20, 60))]
_QUESTION = "a b c"
_TOLD = "TOLD "
_REGISTERED = "registered "
# Flags that this program gives itself.
OWN_FLAGS = ("--tensor-parallel-size", "--load-format", "--model-loader-extra-config")


def main() -> None:
    """Measure, and print the rows; with --inside, be the engine that tells what it holds."""
    if sys.argv[1:2] == ["--inside"]:
        tell_held(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--python", required=True, help="of an environment with vLLM")
    parser.add_argument("--ranks", type=int, action="append", help="repeatable; 2, then 1")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--flags", default="--max-model-len 4096 --trust-remote-code")
    options = parser.parse_args()
    results = Results(options.output, options.minutes)
    packages = options.output / "packages"
    loaders.unpack_plugin(packages)
    for ranks in options.ranks or [2, 1]:
        flags = (*options.flags.split(), "--tensor-parallel-size", str(ranks))
        folder = options.output / f"ranks-{ranks}"
        folder.mkdir(exist_ok=True)
        engine = Engine(options.python, options.model, flags, folder, packages)
        try_ranks(engine, results, ranks)


def try_ranks(engine: Engine, results: Results, ranks: int) -> None:
    """Try all of it with so many ranks; what fails is a row that says why."""
    source = f"{ranks} ranks"
    results.measure("held, mapped", source, 120, partial(compare_held, engine, results, source))
    if ranks > 1 or len(results.rows) == 1:
        results.measure("served, mapped", source, 120, partial(kill_both, engine, results, source))


def compare_held(engine: Engine, results: Results, source: str) -> Row:
    """Compare what engines hold after an ordinary load and mapped: a row's `note` says the rest."""
    ordinary = run_inside(engine, "ordinary", ())
    with loaders.holding(engine, results) as (_, ready, flags):
        mapped = run_inside(engine, "mapped", flags)
    pairs = list(zip(ordinary.held, mapped.held, strict=True))
    differing = sorted({name for pair in pairs for name in list_differing(*pair, weights=True)})
    if differing:
        raise RuntimeError(f"{len(differing)} differ: {', '.join(differing[:5])}")
    if ordinary.answers != mapped.answers:
        raise RuntimeError(f"other answers: {ordinary.answers} and {mapped.answers}")
    beside = sorted({name for pair in pairs for name in list_differing(*pair, weights=False)})
    phases = {"daemon": ready, "ordinary": ordinary.seconds, "mapped": mapped.seconds}
    count = sum(name.startswith(_REGISTERED) for own in mapped.held for name in own)
    note = f"{count} tensors with the SHA-256 of an ordinary load, same answers"
    note += f"; beside weights differ {', '.join(beside[:5])}" if beside else ""
    return Row("held, mapped", source, phases=phases, note=note)


def list_differing(own: dict[str, str], other: dict[str, str], *, weights: bool) -> list[str]:
    """List what differs: of weights, wherever they are kept, or of all else, such as workspaces."""
    kept = {digest for name, digest in own.items() if name.startswith(_REGISTERED)}
    return [
        name
        for name in own.keys() | other.keys()
        if own.get(name) != other.get(name)
        and weights == (name.startswith(_REGISTERED) or own.get(name) in kept)
    ]


@dataclass(frozen=True)
class Inside:
    """What an engine told: of each rank the SHA-256 by name; its answers; seconds of its start."""

    held: list[dict[str, str]]
    answers: list[list[int]]
    seconds: float


def run_inside(engine: Engine, name: str, flags: Sequence[str]) -> Inside:
    """Run an engine that tells what it holds, and ends."""
    command = [engine.python, __file__, "--inside", "--model", str(engine.model)]
    own = Path(__file__).parent
    path = f"{engine.packages}:{own}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # A function goes to each rank.
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    log = engine.folder / f"inside-{name}.log"
    with log.open("w") as out:
        done = subprocess.run(
            [*command, *engine.flags, *flags],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        )
    lines = [line for line in log.read_text().splitlines() if line.startswith(_TOLD)]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"the engine ended with {done.returncode}; see {log.name}")
    return Inside(**json.loads(lines[-1].removeprefix(_TOLD)))


def tell_held(arguments: list[str]) -> None:
    """Start an engine in this process, and tell what each rank holds and what it answers."""
    from kimi_prepared_weights.hold import EngineParser  # noqa: PLC0415
    from vllm import LLM, SamplingParams  # noqa: PLC0415
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415

    options = EngineArgs.add_cli_args(EngineParser()).parse_args(arguments)
    began = time.monotonic()
    llm = LLM.from_engine_args(EngineArgs.from_cli_args(options))
    wanted = SamplingParams(max_tokens=16, temperature=0)
    outputs = llm.generate([{"prompt_token_ids": one} for one in PROMPTS], wanted, use_tqdm=False)
    seconds = time.monotonic() - began
    answers = [list(one.outputs[0].token_ids) for one in outputs]
    held = llm.apply_model(describe)
    document = {"held": held, "answers": answers, "seconds": seconds}
    sys.stdout.write(f"\n{_TOLD}{json.dumps(document)}\n")


def describe(model: Any) -> dict[str, str]:
    """The SHA-256 of every parameter, buffer and plain attribute, and the numbers beside them."""
    import hashlib  # noqa: PLC0415

    import torch  # noqa: PLC0415
    from kimi_prepared_weights import holdings, references  # noqa: PLC0415

    def digest(tensor: Any) -> str:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        kind = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {tensor.device.type} "
        return kind + hashlib.sha256(memoryview(data)).hexdigest()

    registered = references.list_registered(model).items()
    places = references.list_references(model)
    # Caches of keys and values are no weights, and fill the card.
    tensors = [(f"registered {name}", one) for name, one in registered]
    tensors += [(f"place {one.path}", one.tensor) for one in places if "kv_cache" not in one.path]
    values = holdings.read_values(model).items()
    return {name: digest(one) for name, one in tensors} | {
        f"value {name}": repr(value) for name, value in values
    }


def kill_both(engine: Engine, results: Results, source: str) -> Row:
    """Kill a server that maps, then the holder under the next one; each answers as before."""
    phases: dict[str, float] = {}
    with loaders.holding(engine, results) as (holder, phases["daemon"], flags):
        with _serving(engine, results, "first", flags) as server:
            phases["first answer"] = server.seconds
            expected = server.ask()
            server.kill()
        longer = replace(engine, flags=_change_context(engine.flags))
        with _serving(longer, results, "again", flags) as server:
            phases["after kill -9"] = server.seconds
            _expect(server.ask(), expected, "after kill -9 and with a changed context")
            os.killpg(holder.pid, signal.SIGKILL)
            holder.wait(30)
            time.sleep(2)
            _expect(server.ask(), expected, "without its holder")
    with (
        loaders.holding(engine, results) as (_, phases["daemon again"], flags),
        _serving(engine, results, "both again", flags) as server,
    ):
        phases["both again"] = server.seconds
        _expect(server.ask(), expected, "after both had ended")
        memory = loaders.read_memory(0)
    note = "same answer after kill -9 of the engine, with another context, and without the holder"
    return Row("served, mapped", source, phases=phases, memory=memory, note=note)


class _serving:  # noqa: N801 - a context manager
    """Runs a server until the end of the block. `seconds`: from its command to its answer."""

    def __init__(self, engine: Engine, results: Results, name: str, flags: tuple[str, ...]) -> None:
        self._engine, self._results = engine, results
        self._port = loaders.find_port()
        self._log = (engine.folder / f"serve-{name.replace(' ', '-')}.log").open("w")
        command = engine.command("--port", str(self._port), *flags)
        self._running = loaders.running(command, self._log, engine, {})
        self.seconds = 0.0

    def __enter__(self) -> _serving:
        began = time.monotonic()
        self._process = self._running.__enter__()
        try:
            loaders.wait_for_answer(self._process, self._port, self._engine, self._results.left_s)
        except BaseException:
            self.__exit__()
            raise
        self.seconds = time.monotonic() - began
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__(None, None, None)
        self._log.close()

    def ask(self) -> str:
        """Ask for a greedy answer."""
        question = {
            "model": str(self._engine.model),
            "prompt": _QUESTION,
            "max_tokens": 16,
            "temperature": 0,
        }
        answer = loaders.post(self._port, "/v1/completions", json.dumps(question).encode())
        return str(json.loads(answer)["choices"][0]["text"])

    def kill(self) -> None:
        """Kill all of its processes at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


def _change_context(flags: tuple[str, ...]) -> tuple[str, ...]:
    words = [word for word in flags if word != "--max-model-len"]
    at = flags.index("--max-model-len") if "--max-model-len" in flags else None
    if at is None:
        return flags
    del words[at]
    return (*words, "--max-model-len", "2048")


def _expect(answer: str, expected: str, when: str) -> None:
    if answer != expected:
        raise RuntimeError(f"another answer {when}: {answer!r}, not {expected!r}")


if __name__ == "__main__":
    main()
