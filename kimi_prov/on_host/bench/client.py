"""Command lines of the engine's own bench client, and reading its results; runs nothing."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Mapping, Optional, Tuple

from kimi_prov.contract.errors import HostError

# Used where the plan predicts nothing: long enough to be a measurement, over in seconds.
INPUT_TOKENS, OUTPUT_TOKENS = 256, 64
_LEAST_INPUT, _LEAST_OUTPUT = 64, 32
# One request shall take no longer than this by the plan's own figures; lengths shrink to fit.
_REQUEST_S = 90.0
# Between two numbers of requests at once, this factor.
_STEP = 4


def levels(concurrency: int) -> List[int]:
    """Return the concurrencies to measure: 1, 4, 16, ... and the planned one."""
    found = []
    level = 1
    while level < concurrency:
        found.append(level)
        level *= _STEP
    return [*found, max(1, concurrency)]


def requests(level: int) -> int:
    """Return the number of requests at a concurrency: two rounds, three at concurrency 1."""
    return 3 if level == 1 else 2 * level


def lengths(throughput: Mapping[str, Any], context: int) -> Tuple[int, int]:
    """Return prompt and answer length in tokens: the prediction's, or shorter to save time."""
    prompt_tokens = int(throughput.get("input_tokens") or INPUT_TOKENS)
    answer_tokens = int(throughput.get("output_tokens") or OUTPUT_TOKENS)
    share = min(1.0, _REQUEST_S / max(_seconds(throughput, prompt_tokens, answer_tokens), 1e-9))
    prompt_tokens = max(_LEAST_INPUT, int(prompt_tokens * share))
    answer_tokens = max(_LEAST_OUTPUT, int(answer_tokens * share))
    # The client counts tokens by its own tokenizer and may be off by a few.
    room = context - 64
    answer_tokens = max(1, min(answer_tokens, room // 2))
    return max(1, min(prompt_tokens, room - answer_tokens)), answer_tokens


def _seconds(throughput: Mapping[str, Any], prompt_tokens: int, answer_tokens: int) -> float:
    """Predict the seconds of one request at the planned concurrency; 0 without a prediction."""
    prefill = (throughput.get("prefill_tok_s") or {}).get("expected")
    decode = (throughput.get("decode_tok_s") or {}).get("expected")
    waiting = prompt_tokens * int(throughput.get("concurrency") or 1) / prefill if prefill else 0.0
    return float(waiting + (answer_tokens / decode if decode else 0.0))


def runs(plan: Mapping[str, Any], shape: Tuple[int, int], seed: int) -> List[Dict[str, Any]]:
    """Return a run of the client for each concurrency: {"level", "module", "argv", "result"}.

    Each has a `seed` of its own: prompts seen before would come out of the engine's cache. `result`
    is a file of the current directory. The API key is not among the arguments: either client reads
    OPENAI_API_KEY.
    """
    write = _sglang if plan["engine"]["name"] == "ktransformers" else _vllm
    found = []
    for number, level in enumerate(levels(int(plan["throughput"]["concurrency"]))):
        result = f"{level}.json"
        module, argv = write(plan, level, shape, result)
        argv += ["--seed", str(seed + number)]
        found.append({"level": level, "module": module, "argv": argv, "result": result})
    return found


def _vllm(
    plan: Mapping[str, Any], level: int, shape: Tuple[int, int], result: str
) -> Tuple[str, List[str]]:
    # Over the loopback, to the certificate whose fingerprint was compared before.
    argv = ["bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions", "--insecure"]
    argv += [*_common(plan, level, shape), "--dataset-name", "random", "--ignore-eos"]
    argv += ["--percentile-metrics", "ttft,tpot", "--save-result"]
    argv += ["--result-dir", ".", "--result-filename", result]
    if "--trust-remote-code" in plan["instances"][0]["argv"]:
        argv.append("--trust-remote-code")
    return "vllm.entrypoints.cli.main", argv


def _sglang(
    plan: Mapping[str, Any], level: int, shape: Tuple[int, int], result: str
) -> Tuple[str, List[str]]:
    # Its "random" would fetch conversations from a hub; "random-ids" makes them up.
    argv = ["--backend", "sglang-oai", *_common(plan, level, shape)]
    argv += ["--dataset-name", "random-ids", "--random-range-ratio", "1.0"]
    argv += ["--warmup-requests", "0", "--output-file", result]
    return "sglang.bench_serving", argv


def _common(plan: Mapping[str, Any], level: int, shape: Tuple[int, int]) -> List[str]:
    model = plan["model"]
    argv = ["--base-url", f"https://127.0.0.1:{plan['proxy']['port']}"]
    argv += ["--model", model["served_names"][0], "--tokenizer", model["serve_dir"]]
    argv += ["--num-prompts", str(requests(level)), "--max-concurrency", str(level)]
    argv += ["--random-input-len", str(shape[0]), "--random-output-len", str(shape[1])]
    return argv


def read(level: int, text: str) -> Dict[str, Any]:
    """Read a result file of either client; seconds, and tokens a second.

    Raises HostError where it holds no answered request.
    """
    try:
        found = json.loads(text.strip().splitlines()[-1] if "\n{" in text.strip() else text)
    except ValueError:
        raise HostError("the bench client left no result") from None
    done = int(found.get("completed") or 0)
    failed = requests(level) - done
    if not done:
        raise HostError(f"none of {failed} requests was answered")
    ttft_s = _seconds_of(found, "median_ttft_ms")
    tpot_s = _seconds_of(found, "median_tpot_ms")
    prompt = float(found["total_input_tokens"]) / done
    return {
        "concurrency": level,
        "requests": done,
        "failed": failed,
        "seconds": round(float(found["duration"]), 3),
        "input_tokens": int(found["total_input_tokens"]),
        "output_tokens": int(found["total_output_tokens"]),
        "ttft_s": {"median": ttft_s, "p99": _seconds_of(found, "p99_ttft_ms")},
        "tpot_s": {"median": tpot_s, "p99": _seconds_of(found, "p99_tpot_ms")},
        "decode_tok_s": round(1 / tpot_s, 2) if tpot_s else None,
        "aggregate_tok_s": round(float(found["output_throughput"]), 2),
        "prefill_tok_s": round(prompt / ttft_s, 1) if ttft_s else None,
    }


def _seconds_of(found: Mapping[str, Any], name: str) -> Optional[float]:
    value = found.get(name)
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        return None
    return round(value / 1000, 5)
