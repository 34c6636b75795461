"""Rows of the catalogue's speeds, made from a bench: what speed depends on, without its owner.

A row has only the fields that are named here one by one; everything else in a bench is left out.
Names of models, engines, processors and GPUs are the catalogue's own.

Decides: what of a bench goes into a row of measured speeds.
Held by: tests/unit/commands/test_contribute.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from kimi_prov.errors import UserError
from kimi_prov.planner.engine import expert_backend, sglang

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.loader import Catalogue

SCHEMA = "kimi-prov/catalog/speeds/v1"
Row = dict[str, Any]
# The version of a release. After a + a private build would follow, which may name its builder.
_VERSION = re.compile(r"\d{1,6}(\.\d{1,6}){0,4}((a|b|rc|\.post|\.dev)\d{1,6})?")
_MONTH = re.compile(r"\d{4}-\d{2}")
# The words by which the reader of rows recognises an engine.
_ENGINES = {"vllm": "vllm", "ktransformers": "sglang-kt + kt-kernel"}
_MEASURE_AGAIN = "measure again:  kimi-prov bench INVENTORY --format json --output bench.json"
# From so many answered requests the confidence is high.
_MIN_REQUESTS = 8


def make_rows(result: Mapping[str, Any], catalogue: Catalogue) -> list[Row]:
    """Make a row for each number of requests at once; `result` is one host's of a bench document.

    Raises UserError for a name that the catalogue does not know, because it could identify someone.
    """
    serving, machine = result["serving"], result["machine"]
    if (serving["instances"] or 1) > 1:
        raise UserError(
            "several instances served it; a row is of one",
            fix="bench a machine with one:  kimi_instances: 1",
        )
    common = {
        "model": catalogue.model(result["model"]).name,
        "quant": _name_quantisation(serving, catalogue),
        "engine": _format_engine(result["engine"]),
        **_describe_hardware(machine, result["memory"], catalogue),
        "flags": _format_flags(serving),
    }
    tag = hashlib.sha256(json.dumps(common, sort_keys=True).encode()).hexdigest()[:8]
    month = _MONTH.match(str(result["measured_at"]))
    common["source"] = f"kimi-prov bench {tag}"
    return [
        _make_row(level, result, common, month[0] if month else "")
        for level in result["serve"]["levels"]
        if level["decode_tok_s"]
    ]


def _make_row(
    level: Mapping[str, Any], result: Mapping[str, Any], common: Mapping[str, Any], month: str
) -> Row:
    many = level["concurrency"] > 1
    lengths = result["serve"]
    sure = "high" if level["requests"] >= _MIN_REQUESTS else "medium"
    row = {
        **{key: common[key] for key in common if key != "source"},
        "concurrency": int(level["concurrency"]),
        "context": f"{int(lengths['input_tokens'])}/{int(lengths['output_tokens'])}",
        "decode_tok_s_per_request": float(level["decode_tok_s"]),
        "decode_tok_s_aggregate": float(level["aggregate_tok_s"]) if many else None,
        # With several requests the first token also waits for other prompts.
        "prefill_tok_s": None if many or not level["prefill_tok_s"] else level["prefill_tok_s"],
        "measured": True,
        "confidence": "low" if result["load"]["busy"] else sure,
        "note": "; ".join(
            part for part in (month, _describe_chat(lengths), _join_values(many)) if part
        ),
        "source": common["source"],
    }
    row = {key: value for key, value in row.items() if value not in (None, "")}
    tag = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:10]
    return {"id": f"b{tag}", **row}


def _describe_chat(serve: Mapping[str, Any]) -> str:
    """Note that requests were chats, whose template adds tokens to the prompt's."""
    return "chat" if (serve.get("load") or {}).get("chat") else ""


def _join_values(many: bool) -> str:  # noqa: FBT001  (one of two notes)
    return "aggregate incl. TTFT" if many else ""


def _format_engine(engine: Mapping[str, Any]) -> str:
    name = _ENGINES.get(str(engine["name"]))
    if name is None or not _VERSION.fullmatch(str(engine["version"])):
        raise UserError(
            "the bench names an engine or a version that this one does not know",
            fix="use the version of kimi-prov that made it",
        )
    return f"{name} {engine['version']}"


def _describe_hardware(
    machine: Mapping[str, Any], memory: Mapping[str, Any], catalogue: Catalogue
) -> dict[str, Any]:
    cards = [_format_cards(row, catalogue) for row in machine["gpus"]]
    if len(cards) > 1:
        raise UserError("the machine has GPUs of several kinds", fix="a row is of equal GPUs")
    known = catalogue.find_cpu(str(machine["processor"] or ""))
    sockets = int(machine["sockets"] or 1)
    name = known.name if known else "unspecified processor"
    channels, size = machine["memory_channels"], machine["memory_bytes"]
    parts = [f"{channels}ch" if channels else "", f"{size / 2**30:.0f} GiB" if size else ""]
    theory, measured = machine["memory_theoretical_bytes_per_s"], memory["bytes_per_s"]
    return {
        "cpu": f"{sockets}x {name}",
        "sockets": sockets,
        "memory": ", ".join(part for part in parts if part),
        "cpu_mem_theoretical_gb_s": round(theory / 1e9, 1) if theory else None,
        "cpu_mem_measured_gb_s": round(measured / 1e9, 1) if measured else None,
        "gpus": cards[0] if cards else "none",
    }


def _format_cards(row: Mapping[str, Any], catalogue: Catalogue) -> str:
    card = catalogue.gpu(str(row["model"]), row["memory_bytes"])
    return f"{int(row['count'])}x {card.name}"


def _format_flags(serving: Mapping[str, Any]) -> str:
    """Describe how the model was served, in the words that the reader of rows looks for."""
    words = [
        f"{label}{int(serving[key])}"
        for key, label in (("tensor", "TP"), ("pipeline", "PP"), ("data", "DP"))
        if (serving[key] or 1) > 1
    ]
    if serving["gpu_experts"] is not None:
        words.append(f"gpu-experts {int(serving['gpu_experts'])}")
    if serving["method"]:
        start = sglang.choose_gpu_prefill_threshold(serving["method"])
        words += [f"layerwise prefill threshold {start}"] if start is not None else []
    if serving["threads"]:
        words.append(f"cpuinfer {int(serving['threads'])}")
    if serving["experts_by"]:
        if serving["experts_by"] not in expert_backend.RESIDENT_FORMATS:
            raise UserError(
                "the bench names a backend of experts that is not known", fix=_MEASURE_AGAIN
            )
        words.append(f"KIMI_EXPERTS={serving['experts_by']}")
    words += ["KV fp8"] if serving["kv_dtype"] == "fp8" else []
    return ", ".join(words)


def _name_quantisation(serving: Mapping[str, Any], catalogue: Catalogue) -> str:
    """Return the format of the weights, or the kt-kernel method, as the catalogue names it."""
    method, name = serving["method"], serving["weights_format"]
    if method:
        if method not in {kind for row in catalogue.cpus for kind in row.kt_methods}:
            raise UserError(
                "the bench names a method of kt-kernel that is not known", fix=_MEASURE_AGAIN
            )
        return str(method)
    if not name:
        raise UserError("the bench names no weights format", fix=_MEASURE_AGAIN)
    return catalogue.format(str(name)).name
