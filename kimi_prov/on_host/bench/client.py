"""Command lines of the engine's own bench client; runs nothing.

The flags are those of `vllm bench serve` in 0.19.1, 0.25.1 and 0.32.0, which take all of them, and
of sglang.bench_serving in sglang-kt 0.7.2. tests/engines/test_bench_clients.py checks them with
vLLM's own parsers.

Decides: what load a bench puts on a machine, and what it refuses (the flags of the clients).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Optional

from kimi_prov.on_host.bench import load as bench_load
from kimi_prov.on_host.bench.load import KTRANSFORMERS, Load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.plan import MachinePlan

Shape = tuple[Optional[int], Optional[int]]
# A run of the client, as list_runs describes it.
Run = dict[str, Any]
# What the progress says while the client warms up.
WARM_UP = "warm-up"
# The file of prompts in the client's current directory.
PROMPTS = "prompts.json"
# The limits of the clients for prompts of a file; prompts beyond them are left out.
LIMITS = (
    "vLLM's: 4 to 1,024 tokens, up to 2,048 with the answer; sglang's: 2 tokens and 2 of an answer"
)


def list_runs(
    plan: MachinePlan, load: Load, shape: Shape, seed: int, url: str | None = None
) -> list[Run]:
    """Return each run of the client, in order: warm-up, then round by round each load.

    `level` is the number of requests at once, `round` counts from 1 (0 is the warm-up), `prompts`
    is where in a file's prompts the run begins and how many it takes, or None; `seen` whether
    requests have images. Each run has its own seed: prompts that were used before would come out of
    the engine's cache. `result` is a file of the current directory. The API key is not among the
    arguments: either client reads OPENAI_API_KEY. `url`: where it asks; None is the opened port.
    """
    levels = bench_load.list_levels(load, int(plan["throughput"]["concurrency"]))
    found = []
    if load.warm_up:
        # Random words, so that no measured prompt is in the cache.
        words = Load(chat=load.chat or load.has_images)
        like = Load(input_tokens=shape[0], output_tokens=shape[1])
        shape_of_words = bench_load.choose_lengths(like, {}, int(plan["model"]["context"]))
        level = min(load.warm_up, max(levels))
        run = _build_run(plan, words, shape_of_words, level, load.warm_up, seed, url)
        found.append({**run, "level": level, "round": 0, "prompts": None})
    taken = 0
    total = load.rounds * sum(bench_load.count_requests(load, level) for level in levels)
    for turn in range(1, load.rounds + 1):
        for level in levels:
            count = bench_load.count_requests(load, level)
            run = _build_run(plan, load, shape, level, count, seed + len(found) + 1, url)
            # vLLM's client skips some prompts: the spare prompts of a file lie between the runs.
            begin = taken * load.prompts // total if total < load.prompts else taken
            prompts = {"from": begin, "count": count} if load.form else None
            found.append({**run, "level": level, "round": turn, "prompts": prompts})
            taken += count
    for number, run in enumerate(found):
        run["result"] = f"{number}.json"
        run["argv"] += _build_output_options(plan, run["result"])
    return found


def _build_run(
    plan: MachinePlan,
    load: Load,
    shape: Shape,
    level: int,
    count: int,
    seed: int,
    url: str | None = None,
) -> Run:
    sglang = plan["engine"]["name"] == KTRANSFORMERS
    argv = ["--base-url", url or f"https://127.0.0.1:{plan['proxy']['port']}"]
    model = plan["model"]
    argv += ["--model", model["served_names"][0], "--tokenizer", model["serve_dir"]]
    argv += ["--num-prompts", str(count), "--max-concurrency", str(level), "--seed", str(seed)]
    if load.rate_per_s is not None:
        argv += ["--request-rate", f"{load.rate_per_s:g}"]
    argv += (
        _build_sglang_options(load, shape) if sglang else _build_vllm_options(load, shape, count)
    )
    if not sglang and "--trust-remote-code" in plan["instances"][0]["argv"]:
        argv.append("--trust-remote-code")
    return {
        "module": "sglang.bench_serving" if sglang else "vllm.entrypoints.cli.main",
        "argv": argv if sglang else ["bench", "serve", *argv],
        "requests": count,
        "seen": load.has_images,
    }


def _build_output_options(plan: MachinePlan, result: str) -> list[str]:
    if plan["engine"]["name"] == KTRANSFORMERS:
        return ["--output-file", result]
    return ["--save-result", "--result-dir", ".", "--result-filename", result]


def _build_vllm_options(load: Load, shape: Shape, count: int) -> list[str]:
    # Over the loopback, after the certificate's fingerprint was compared.
    argv = ["--insecure", "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl"]
    # The client's test request would put a prompt into the cache that is measured next.
    argv += ["--ready-check-timeout-sec", "0"]
    if load.chat or load.has_images:
        argv += ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"]
    else:
        argv += ["--backend", "openai", "--endpoint", "/v1/completions"]
    if load.form:
        argv += ["--dataset-name", "sharegpt", "--dataset-path", PROMPTS]
        argv.append("--disable-shuffle")
        # With enough prompts in the file none is used twice in a run; else some are used again.
        argv += ["--no-oversample"] if load.prompts >= count else []
        return argv + (["--sharegpt-output-len", str(shape[1])] if shape[1] else [])
    argv += ["--random-input-len", str(shape[0]), "--random-output-len", str(shape[1])]
    if not load.images:
        return [*argv, "--dataset-name", "random"]
    size = f"({load.image_height}, {load.image_width}, 1)"
    argv += ["--dataset-name", "random-mm", "--random-mm-num-mm-items-range-ratio", "0"]
    argv += ["--random-mm-base-items-per-request", str(load.images)]
    limit = json.dumps({"image": load.images, "video": 0})
    argv += ["--random-mm-limit-mm-per-prompt", limit]
    return [*argv, "--random-mm-bucket-config", f"{{{size}: 1.0}}"]


def _build_sglang_options(load: Load, shape: Shape) -> list[str]:
    argv = ["--backend", "sglang-oai-chat" if load.chat else "sglang-oai"]
    argv += ["--warmup-requests", "0"]
    if load.form:
        argv += ["--dataset-name", "sharegpt", "--dataset-path", PROMPTS]
        return argv + (["--sharegpt-output-len", str(shape[1])] if shape[1] else [])
    # Its "random" would fetch conversations from a hub; "random-ids" generates them.
    argv += ["--dataset-name", "random-ids", "--random-range-ratio", "1.0"]
    return [*argv, "--random-input-len", str(shape[0]), "--random-output-len", str(shape[1])]


def list_conversations(
    prompts: Sequence[Mapping[str, Any]], taken: Mapping[str, int], *, whole: bool
) -> list[Run]:
    """Return the prompts of one run in ShareGPT's form, from where the run before it ended.

    `whole` returns all that follow, continuing at the start of the file: vLLM's client takes as
    many as it needs, and skips those outside its limits. sglang's shuffles all that it gets.
    """
    begin = taken["from"] % len(prompts)
    turned = [*prompts[begin:], *prompts[:begin]]
    count = len(turned) if whole else taken["count"]
    return [
        {
            "conversations": [
                {"from": "human", "value": row["prompt"]},
                {"from": "gpt", "value": row["answer"] or ""},
            ],
            **({"image": row["image"]} if row.get("image") else {}),
        }
        for row in turned[:count]
    ]
