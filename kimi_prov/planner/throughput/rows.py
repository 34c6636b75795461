"""Reads rows of measured speeds into cases, with which the estimator is compared.

Rows describe in words what was measured ("2x EPYC 9654 (64 cores requested)"). The defaults here
fill in what a row leaves out. A row that cannot become a case is skipped with a reason.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kimi_prov import documents
from kimi_prov.errors import UserError
from kimi_prov.planner.throughput import subjects
from kimi_prov.planner.throughput.cases import NOISE, Case, find_kind
from kimi_prov.planner.throughput.first_token_rows import make_first_token
from kimi_prov.planner.throughput.formats import find_weight_format, make_uniform_format
from kimi_prov.planner.throughput.inputs import Machine, Serving

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kimi_prov.planner.throughput.first_token_rows import FirstToken
    from kimi_prov.planner.throughput.inputs import (
        Cpu,
        EngineFamily,
        Gpus,
        ModelShape,
        WeightFormat,
    )

# Tokens of prompt and answer where a row names no lengths: those of most benches.
_LENGTHS = (1000.0, 1000.0)
_SHORT, _SHAREGPT = (500.0, 500.0), (320.0, 200.0)
# The lengths of llama-bench, which starts with an empty cache.
_BENCH = (512.0, 128.0)
_ANSWER = 512.0
# The share of a GPU's memory that an engine may take, and GB of it without weights and cache.
_USABLE, _ENGINE_GB, _HYBRID_RESERVE_GB = 0.9, 5.0, 12.0
# Where a hybrid row does not name the experts on its GPUs, they fill half of the free memory.
_HYBRID_FILL = 0.5
# Tokens of a prompt in one pass of llama.cpp, where a row does not name them.
_MICRO_BATCH = 512
_MAX_BYTES = 4 << 20
_DEFECT = re.compile(r"bad configuration|known \w+ regression", re.I)
# Words for memory and threads that are spread over the nodes, by options or by firmware.
_SPREAD = re.compile(r"--numa |interleave", re.I)
# Formats that llama.cpp brings into the order of its kernels when it loads them, of those in rows.
_LLAMA_PACKED = re.compile(r"^(IQ4_NL|Q4_0)\b")
_UNTUNED = "no tuned mixture kernels"
_STREAMED = re.compile(r"layer-?wise|prefill-token-threshold", re.I)
_SPECULATIVE = re.compile(r"eagle|\bmtp\b|spec(ulative)? dec", re.I)


_NUMBERS = (
    "concurrency",
    "sockets",
    "cpu_mem_theoretical_gb_s",
    "cpu_mem_measured_gb_s",
    "decode_tok_s_per_request",
    "decode_tok_s_aggregate",
    "prefill_tok_s",
    "ttft_mean_s",
    "ttft_median_s",
    "requests",
)


@dataclass(frozen=True)
class SkippedRow:
    """A row that is not scored, and the reason."""

    id: str
    reason: str


def read_file(path: Path) -> tuple[list[Case], list[SkippedRow]]:
    """Read a file of rows. Raises UserError if it has not the form of speeds.yaml."""
    return read_rows(_read_document(path), str(path))


def _read_document(path: Path) -> list[Any]:
    fix = "give a YAML file of measured rows"
    document = documents.read_document(path, what="such a file", limit=_MAX_BYTES, fix=fix).yaml(
        fix
    )
    rows = document.get("rows") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise UserError(f"{path}: no list `rows`", fix="give it the form of catalog/speeds.yaml")
    return rows


def read_files(paths: Iterable[Path]) -> tuple[list[Case], list[SkippedRow]]:
    """Read several files; a row with the same id in two files counts once."""
    cases: list[Case] = []
    aside: list[SkippedRow] = []
    for path in paths:
        seen = {case.id for case in cases} | {row.id for row in aside}
        more, without = read_file(path)
        cases += [case for case in more if case.id not in seen]
        aside += [row for row in without if row.id not in seen]
    return cases, aside


def read_first_tokens(paths: Iterable[Path]) -> list[FirstToken]:
    """Read the times to the first token of several files; a row that is no case has none."""
    times: dict[str, FirstToken] = {}
    for path in paths:
        for row in _read_document(path):
            mean = row.get("ttft_mean_s")
            if not mean or row.get("concurrency") == 1:
                continue
            with contextlib.suppress(_NotACaseError):
                base = _make_base(row)
                time = make_first_token(base, float(mean), _read_text(row, "load"))
                times.setdefault(base.id, time)
    return list(times.values())


def read_rows(rows: Sequence[Any], where: str) -> tuple[list[Case], list[SkippedRow]]:
    """Read rows; `where` names their file in the error about a row without id."""
    cases: list[Case] = []
    aside: list[SkippedRow] = []
    for index, row in enumerate(rows):
        if not isinstance(row, dict) or "id" not in row:
            raise UserError(f"{where}: rows[{index}] has no id", fix="name the row")
        _check_row(row, where)
        try:
            cases += _make_figures(row, _make_base(row))
        except _NotACaseError as reason:
            aside.append(SkippedRow(str(row["id"]), str(reason)))
    return cases, aside


def _check_row(row: dict[str, Any], where: str) -> None:
    """Raise UserError for a figure that is no number above zero."""
    for key in _NUMBERS:
        value = row.get(key)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < math.inf):
            raise UserError(
                f"{where}: row {row['id']}: {key} is {value!r}, wanted a number above 0",
                fix=f"correct {key}, or leave it out",
            )


class _NotACaseError(Exception):
    """The reason why a row is skipped."""


def _make_base(row: dict[str, Any]) -> Case:
    """Make the case of a row without its figures. Raises _NotACaseError."""
    _refuse_row(row)
    engine = _find_engine(_read_text(row, "engine"))
    model = _find_model(_read_text(row, "model"))
    machine = Machine(_make_cpu(row, engine), _make_gpus(row, engine))
    concurrency = int(row["concurrency"])
    serving = _make_serving(row, engine, model, machine, concurrency)
    return Case(
        id=str(row["id"]),
        author=_read_text(row, "author") or _read_text(row, "source"),
        group="|".join(_read_text(row, key) for key in ("source", "cpu", "gpus", "engine")),
        kind=find_kind(machine, concurrency),
        quantity="decode",
        model=model,
        machine=machine,
        serving=serving,
        value=0.0,
        noise=NOISE.get(_read_text(row, "confidence"), NOISE["medium"]),
        end_to_end="incl. TTFT" in _read_text(row, "note"),
    )


def _refuse_row(row: dict[str, Any]) -> None:
    if row.get("measured") is False:
        raise _NotACaseError("not measured, by its own account")
    if _DEFECT.search(_read_text(row, "note")):
        raise _NotACaseError("its source calls the configuration defective")
    flags = f"{_read_text(row, 'engine')} {_read_text(row, 'flags')}"
    if _SPECULATIVE.search(flags.replace("no spec decode", "")):
        raise _NotACaseError("speculative decoding is not modelled")
    if "KIMI_EXPERTS" in flags:
        raise _NotACaseError("vLLM's plugin for experts has a model of its own (plugin.py)")
    if "whole layers" in flags:
        raise _NotACaseError("attention on the processor is not modelled")
    if not row.get("concurrency"):
        raise _NotACaseError("concurrency not stated")


def _make_figures(row: dict[str, Any], base: Case) -> list[Case]:
    one, all_, prompt = (
        row.get(key)
        for key in ("decode_tok_s_per_request", "decode_tok_s_aggregate", "prefill_tok_s")
    )
    cases = []
    if base.serving.concurrency > 1 and all_:
        cases.append(replace(base, value=float(all_) / base.serving.running))
    elif one:
        cases.append(replace(base, value=float(one)))
    if prompt and base.kind != "gpu-batched":
        together = float(base.serving.concurrency)
        cases.append(replace(base, quantity="prefill", value=float(prompt), prompts=together))
    if not cases:
        raise _NotACaseError("no figure that is estimated")
    return cases


def _read_text(row: dict[str, Any], key: str) -> str:
    return str(row.get(key) if row.get(key) is not None else "")


def _parse_number(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text, re.I)
    return float(match[1]) if match else None


def _find_model(name: str) -> ModelShape:
    shape = subjects.find_model(name)
    if shape is None:
        raise _NotACaseError(f"model {name!r} is not known")
    return shape


def _find_engine(text: str) -> EngineFamily:
    low = text.lower()
    if "lk_moe" in low:
        raise _NotACaseError("engine lk_moe is not modelled")
    if "ik_llama" in low:
        return "ik_llama.cpp"
    if "llama.cpp" in low:
        return "llama.cpp"
    if "ktransformers" in low:
        return "ktransformers-legacy"
    if re.search(r"\bkt\b|kt-kernel|sglang-kt|\+kt", low):
        return "ktransformers"
    return "sglang" if "sglang" in low and "vllm" not in low else "vllm"


def _make_cpu(row: dict[str, Any], engine: EngineFamily) -> Cpu | None:
    text, memory = _read_text(row, "cpu"), _read_text(row, "memory")
    on_gpus = engine in {"vllm", "sglang"} and not _read_text(row, "gpus").startswith("none")
    if on_gpus or (text in {"", "-"} and not _read_text(row, "gpus").startswith("none")):
        return None
    instances = _parse_number(r"(\d) instances", text) or (2 if "1 pool" in text else 1)
    sockets = int(row.get("sockets") or _parse_number(r"^(\d)x", text) or 1)
    sockets = max(1, round(sockets / instances))
    known = subjects.find_cpu(text, sockets) or subjects.make_unspecified_cpu(text, sockets)
    return replace(
        known,
        bandwidth_gb_s=_find_bandwidth(row, memory) or known.bandwidth_gb_s,
        measured_gb_s=_find_streamed_rate(row, memory, sockets) or known.measured_gb_s,
        vector="avx2" if "avx2 forced" in _read_text(row, "engine").lower() else known.vector,
        numa_aware="no NUMA" not in _read_text(row, "flags"),
        numa_spread=_SPREAD.search(f"{_read_text(row, 'flags')} {memory}") is not None,
    )


def _find_streamed_rate(row: dict[str, Any], memory: str, sockets: int) -> float | None:
    """Find the GB/s that a streaming test read on this machine, all sockets together."""
    if row.get("cpu_mem_measured_gb_s"):
        return float(row["cpu_mem_measured_gb_s"])
    measured = _parse_number(r"mlc ~?([\d.]+) GiB/s", memory)
    return measured * 1.0737 * sockets if measured else None


def _find_bandwidth(row: dict[str, Any], memory: str) -> float | None:
    if row.get("cpu_mem_theoretical_gb_s"):
        return float(row["cpu_mem_theoretical_gb_s"])
    match = re.search(r"(\d+)ch (?:DDR\d|MRDIMM)-(\d+)", memory)
    return int(match[1]) * int(match[2]) * 8 / 1000 if match else None


def _make_gpus(row: dict[str, Any], engine: EngineFamily) -> Gpus | None:
    text = _read_text(row, "gpus")
    if text.startswith("none"):
        return None
    alone = engine in {"vllm", "sglang"}
    stated = _parse_number(r"^(\d+)(?:-\d+)?x", text) or _parse_number(r"\((\d+)x", text)
    count = int(stated or (8 if alone else 1))
    known = subjects.find_gpus(text, count)
    if known is None and alone:
        raise _NotACaseError(f"GPU {text!r} is not known")
    return known or subjects.make_unspecified_gpus(count)


def _find_format(quant: str, model: ModelShape) -> WeightFormat:
    bits = _parse_number(r"([\d.]+) bpw", quant) or _parse_number(r"(\d\.\d+)-bit", quant)
    if bits:
        return make_uniform_format(bits / 8)
    gib, gb = _parse_number(r"([\d.]+) ?GiB", quant), _parse_number(r"([\d.]+) ?GB", quant)
    if gib or gb:
        return make_uniform_format((gib * 2**30 if gib else (gb or 0) * 1e9) / model.total_params)
    if "8-bit GGUF" in quant:
        return find_weight_format("q8_0")
    if re.match(r"4-bit", quant):
        return find_weight_format("q4_k")
    if "AMX" in quant and "INT8" in quant:
        return find_weight_format("amxint8")
    for word in re.split(r"[ /]", quant):
        try:
            return find_weight_format(word)
        except KeyError:
            continue
    raise _NotACaseError(f"weight format {quant!r} is not known")


def _find_lengths(row: dict[str, Any]) -> tuple[float, float]:
    text = _read_text(row, "context").lower().replace("k", "000")
    pair = re.match(r"(\d+)\s*(?:in)?\s*/\s*(\d+)", text)
    if pair:
        return float(pair[1]), float(pair[2])
    if "short" in text:
        return _SHORT
    if text == "0":
        return _BENCH
    if "sharegpt" in text or "sharegpt" in _read_text(row, "flags").lower():
        return _SHAREGPT
    spread = re.match(r"(\d+)-(\d+)", text)
    if spread:
        return (float(spread[1]) + float(spread[2])) / 2, _ANSWER
    return (float(text), _ANSWER) if text.isdigit() else _LENGTHS


def _make_serving(
    row: dict[str, Any],
    engine: EngineFamily,
    model: ModelShape,
    machine: Machine,
    concurrency: int,
) -> Serving:
    fmt = _find_format(_read_text(row, "quant"), model)
    tokens_in, tokens_out = _find_lengths(row)
    flags = f"{_read_text(row, 'flags')} {_read_text(row, 'cpu')}"
    threads = _parse_number(r"cpu_?infer (\d+)", flags) or _parse_number(r"--threads (\d+)", flags)
    threads = threads or _parse_number(r"\((\d+) (?:cores requested|threads)", flags)
    micro_batch = _parse_number(r"-ub (\d+)", flags)
    quant = _read_text(row, "quant")
    repacking = re.search(r"-rtr(?! 0)", flags) is not None
    if engine == "llama.cpp":
        repacked = _LLAMA_PACKED.match(quant) is not None
    else:
        repacked = repacking or re.search(r"_R\d\b", quant) is not None
    serving = Serving(
        engine=engine,
        weights=fmt,
        concurrency=concurrency,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cpu_threads=int(threads) if threads else None,
        micro_batch=int(micro_batch or _MICRO_BATCH),
        repacked=repacked,
        offloads_prompts=not repacking,
    )
    if machine.gpus is None:
        return serving
    if machine.cpu is not None:
        experts = _count_gpu_experts(_read_text(row, "flags"), serving, model, machine.gpus)
        start = _STREAMED.search(flags) and (_parse_number(r"threshold[ =]+(\d+)", flags) or 1)
        chunk = _parse_number(r"chunked-prefill-size (\d+)", flags)
        return replace(
            serving,
            gpu_experts=experts,
            stream_prefill_from=int(start) if start else None,
            stream_chunk=int(chunk) if chunk else serving.stream_chunk,
        )
    room = machine.gpus.memory_gb * _USABLE * 2**30 - _ENGINE_GB * 1e9
    room -= _count_gpu_weights(fmt, model, machine.gpus)
    shards = int(_parse_number(r"DCP(\d)", flags) or 1)
    # NVIDIA's NVFP4 checkpoints carry the scales of an FP8 cache, and engines take it.
    width = 1 if "FP8 KV" in flags or _read_text(row, "quant") == "NVFP4" else 2
    served = _adjust_lengths(row, serving) if concurrency > 1 else serving
    tokens = shards * max(0.0, room) * min(machine.gpus.count, model.kv_heads)
    return replace(
        served,
        kv_dtype_bytes=width,
        kv_tokens_max=max(4096.0, tokens / (model.kv_bytes_per_token * width / 2)),
        cache_ranks=shards,
        old_build=_is_old_build(_read_text(row, "engine")),
        untuned=_UNTUNED in flags,
    )


def _is_old_build(engine: str) -> bool:
    """Whether this is a build of sglang before 0.5.8 (2026-02) or of vLLM before 0.11 (2025-10)."""
    version = re.search(r"(sglang|vllm) (\d+)\.(\d+)\.(\d+)", engine)
    if version:
        since = (0, 5, 8) if version[1] == "sglang" else (0, 11, 0)
        return tuple(int(part) for part in version.groups()[1:]) < since
    date = re.search(r"20\d\d-\d\d", engine)
    return date is not None and date[0] < ("2026-01" if "sglang" in engine else "2025-10")


def _adjust_lengths(row: dict[str, Any], serving: Serving) -> Serving:
    """Set the lengths' ratio to that of the prompt and answer throughput, where a row has both."""
    prompt, answer = row.get("prefill_tok_s"), row.get("decode_tok_s_aggregate")
    if not prompt or not answer:
        return serving
    return replace(serving, output_tokens=serving.input_tokens * float(answer) / float(prompt))


def _count_gpu_weights(fmt: WeightFormat, model: ModelShape, gpus: Gpus) -> float:
    routed = model.moe_layers * model.experts * model.params_per_expert
    return (routed * fmt.gpu_expert + (model.total_params - routed) * fmt.rest) / gpus.count


def _count_gpu_experts(flags: str, serving: Serving, model: ModelShape, gpus: Gpus) -> int:
    stated = _parse_number(r"gpu[- ]experts (\d+)", flags) or _parse_number(
        r"(\d+) gpu experts", flags
    )
    if stated is not None:
        return int(stated)
    if serving.engine != "ktransformers":
        return 0
    room = gpus.memory_gb * gpus.count * _USABLE - _HYBRID_RESERVE_GB
    room = (room - model.always_params * serving.weights.rest / 1e9) * _HYBRID_FILL
    each = model.moe_layers * model.params_per_expert * serving.weights.gpu_expert / 1e9
    return max(0, min(model.experts, int(room / each)))
