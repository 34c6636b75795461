"""Compares a bench with the prediction: whether it is normal, and where to look if not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.acceptance import suite
from kimi_prov.facts import outline
from kimi_prov.planner.throughput import plugin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.plan import MachinePlan

Row = dict[str, Any]
# Share of the channels' theoretical rate that reading reaches: three quarters is usual; a loaded
# EPYC with twelve channels of DDR5-4800 reached half (230 of 460 GB/s).
_OF_THEORY = (0.5, 0.75, 1.0)
# A kernel reads at one token a share of the bandwidth just measured. For kt-kernel it is the
# smaller of that and of its threads' own limit: 0.8 with 14 threads where memory is slow; the small
# experts of a cut layer may partly be in the cache.
_OF_MEMORY = (0.5, 0.8, 1.3)
# Findings that explain a slow machine, the likeliest first.
CAUSES = (
    "memory.channels",
    "memory.speed",
    "memory.dimms_mixed",
    "cpu.threads_as_cores",
    "cpu.cores_left",
    "numa.sub_nodes",
    "numa.binding",
    "tuning.governor",
    "tuning.thp",
    "tuning.numa_balancing",
    "memory.swap",
    "ram_disk.memory",
    "ram_disk.swap",
    "gpu.held",
    "gpu.pcie",
    "gpu.nvlink",
)
_NOTHING: dict[str, None] = dict.fromkeys(("decode_tok_s", "prefill_tok_s", "aggregate_tok_s"))
_FORMS = {"sharegpt": "prompts of a file (ShareGPT)", "visionarena": "of a file (VisionArena)"}
_CHECKED_CAUSES = (
    "memory channels, threads, SNC, governor, transparent huge pages, RAM disk, other load"
)


def make_document(
    measured: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a host's part of the report.

    `measured` is the machine's answer, `findings` those of today's plan, `variables` the host's.
    """
    plan, facts = measured["plan"], measured["facts"]
    levels = measured["serve"]["levels"]
    rows = compare_figures(measured)
    slow = [row["name"] for row in rows if row["verdict"] == "slow"]
    judged = [row for row in rows if row["verdict"] != "unjudged"]
    failed = sum(level["failed"] for level in levels)
    engine = plan["engine"]
    return {
        "ok": not failed,
        "detail": f"{failed} requests failed" if failed else "measured",
        "normal": not slow if judged else None,
        "model": plan["model"]["name"],
        "engine": {key: engine[key] for key in ("name", "variant", "version")},
        "machine": outline.make_outline(facts),
        "serving": describe_service(plan),
        "measured_at": facts["collected_at"],
        "load": {"average": measured["load"], "busy": measured["busy"]},
        "memory": measured["memory"],
        "layer": measured["layer"],
        "serve": _describe_serving(measured["serve"]),
        "compared": rows,
        "basis": explain_other_load(measured["serve"]) or plan["throughput"]["basis"],
        "look_at": list_causes(measured, findings) if slow else [],
        "last": None,
        "stand_ins": suite.list_stand_ins(plan, variables),
    }


def _describe_serving(serve: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measured load with its description in words."""
    load = serve.get("load")
    if not load:
        return dict(serve)
    several = len(serve["levels"]) > 1
    levels = [
        {**level, "name": _name_level(load, level, several=several)} for level in serve["levels"]
    ]
    return {**serve, "load": {**load, "told": name_load(serve)}, "levels": levels}


def _name_level(load: Mapping[str, Any], level: Mapping[str, Any], *, several: bool) -> str:
    """Return a name of a load of the sweep: its rate if it has one, and its limit.

    Several loads at one rate differ by their limits, also by those that were not reached.
    """
    rate, most = load["rate_per_s"], level["concurrency"]
    if rate is None:
        return f"{most} at once"
    requests = (level["requests"] + level["failed"] + level["left_out"]) / level["rounds"]
    return f"{rate:g}/s, {most} at once" if several or most < requests else f"{rate:g}/s"


def describe_service(plan: MachinePlan) -> dict[str, Any]:
    """Return how the model was served, as far as its speed depends on that; null is unknown."""
    model, ways = plan["model"], plan.get("parallel")
    hybrid, experts = plan.get("hybrid"), plan.get("experts")
    threads = (hybrid and hybrid.get("threads")) or (experts and experts.get("threads"))
    return {
        "weights_format": model.get("weights_format"),
        "kv_dtype": model.get("kv_dtype"),
        "context": model.get("context"),
        "concurrency": plan["throughput"].get("concurrency"),
        "instances": plan.get("instances"),
        "tensor": ways and ways.get("tensor"),
        "pipeline": ways and ways.get("pipeline"),
        "data": ways and ways.get("data"),
        "method": hybrid and hybrid.get("method"),
        "gpu_experts": hybrid and hybrid.get("gpu_experts"),
        "experts_by": experts and experts.get("by"),
        "threads": threads,
    }


def explain_other_load(serve: Mapping[str, Any]) -> str | None:
    """Return why the plan predicts another load than the measured one; None if it is the same."""
    load = serve.get("load")
    if not load:  # an older version's: it asked for nothing else
        return None
    own = [
        f"{load['rate_per_s']:g} requests a second" if load["rate_per_s"] else "",
        "images" if load["images"] or load["images_of_file"] else "",
        "prompts of a file" if load["prompts"] else "",
        "" if load["chosen_lengths"] or load["prompts"] else "given lengths",
    ]
    differences = ", ".join(part for part in own if part)
    return f"none is of this load: {differences}" if differences else None


def compare_figures(measured: Mapping[str, Any]) -> list[Row]:
    """Return each figure with its prediction, if there is one."""
    throughput = measured["plan"]["throughput"]
    levels = measured["serve"]["levels"]
    # The plan predicts one request alone, and the planned number at once.
    concurrency = throughput.get("concurrency")
    first = next((row for row in levels if row["concurrency"] == 1), _NOTHING)
    planned = next((row for row in levels if row["concurrency"] == concurrency), _NOTHING)
    if explain_other_load(measured["serve"]) is not None:
        throughput = {}
    theory = measured["facts"]["memory"]["bandwidth_bytes_per_s"]["theoretical"]
    bandwidth = measured["memory"]["bytes_per_s"]
    rows = [_make_row("memory", "bytes_per_s", bandwidth, _divide_range(_OF_THEORY, theory))]
    layer = measured["layer"]
    if layer["available"]:
        speed = layer["rows"][0]["bytes_per_s"]
        rows.append(_make_row("layer", "bytes_per_s", speed, _predict_layer(layer, bandwidth)))
    return [
        *rows,
        _make_row("single", "tok_per_s", first["decode_tok_s"], throughput.get("single_tok_s")),
        _make_row("prefill", "tok_per_s", first["prefill_tok_s"], throughput.get("prefill_tok_s")),
        _make_row("decode", "tok_per_s", planned["decode_tok_s"], throughput.get("decode_tok_s")),
        _make_row(
            "all", "tok_per_s", planned["aggregate_tok_s"], throughput.get("aggregate_tok_s")
        ),
    ]


def _predict_layer(layer: Mapping[str, Any], bandwidth: float | None) -> dict[str, float] | None:
    """Predict the rate at which the kernel reads, by memory and by its threads; None if unknown.

    No measurement of our own kernel was limited by its threads.
    """
    of_memory = _divide_range(_OF_MEMORY, bandwidth)
    if of_memory is None or layer["method"] == "native":
        return of_memory
    slower = plugin.AVX2_FACTORS if layer["variant"] == "avx2" else {}
    most = layer["threads"] * plugin.CORE_GB_S * 1e9
    spread = plugin.DECODE_SPREAD
    of_threads = {
        "low": most / slower.get("high", 1) / spread,
        "expected": most / slower.get("expected", 1),
        "high": most / slower.get("low", 1) * spread,
    }
    return {name: round(min(value, of_threads[name])) for name, value in of_memory.items()}


def _divide_range(
    shares: tuple[float, float, float], total: float | None
) -> dict[str, float] | None:
    if not total:
        return None
    names = ("low", "expected", "high")
    return {name: round(share * total) for name, share in zip(names, shares, strict=True)}


def _make_row(
    name: str, unit: str, value: float | None, predicted: Mapping[str, Any] | None
) -> Row:
    known = predicted if predicted and predicted.get("expected") is not None else None
    verdict = "unjudged"
    if known and value is not None:
        verdict = "normal"
        if value < known["low"]:
            verdict = "slow"
        elif value > known["high"]:
            verdict = "fast"
    return {
        "name": name,
        "unit": unit,
        "measured": value,
        "predicted": {key: known[key] for key in ("low", "expected", "high")} if known else None,
        "verdict": verdict,
    }


def list_causes(measured: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the known causes of a slow machine that apply here, the likeliest first."""
    causes = []
    if measured["busy"]:
        causes.append(
            {
                "title": "Other work runs on the machine",
                "observed": f"load average {measured['load']} before the bench",
                "fix": "measure again when it is idle: uptime, top",
            }
        )
    present = {row["id"]: row for row in reversed(findings) if row["severity"] != "pass"}
    causes += [
        {key: present[cause].get(key) or "" for key in ("title", "observed", "fix")}
        for cause in CAUSES
        if cause in present
    ]
    if not causes:
        causes.append(
            {
                "title": "Nothing that is known to slow a machine was found",
                "observed": f"looked at: {_CHECKED_CAUSES}",
                "fix": "kimi-prov verify shows whether the engine runs where the plan put it",
            }
        )
    return causes


def compare_results(last: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two results of one host: differences in conditions, and each figure's change."""
    then, figures = _list_figures(last), _list_figures(now)
    request = ("input_tokens", "output_tokens")
    differs = [
        f"{name}: {old} then, {new} now"
        for name, old, new in (
            ("model", last["model"], now["model"]),
            ("engine", name_engine(last), name_engine(now)),
            ("tokens", *([r["serve"][key] for key in request] for r in (last, now))),
            ("load", name_load(last["serve"]), name_load(now["serve"])),
            ("busy", last["load"]["busy"], now["load"]["busy"]),
        )
        if old != new
    ]
    return {
        "measured_at": last["measured_at"],
        "levels": [
            {
                "concurrency": level["concurrency"],
                "aggregate_tok_s": level["aggregate_tok_s"],
                "ttft_s": (level.get("ttft_s") or {}).get("median"),
            }
            for level in last["serve"]["levels"]
        ],
        "differs": differs,
        "rows": [
            {
                "name": name,
                "then": then[name],
                "now": value,
                "change": round(value / then[name] - 1, 3),
            }
            for name, value in figures.items()
            if then.get(name)
        ],
    }


def name_load(serve: Mapping[str, Any]) -> str:
    """Describe a load in a few words, without lengths and numbers at once."""
    load = serve.get("load") or {}
    size = f"{load.get('image_width')}x{load.get('image_height')}"
    words = [
        f"profile {load['profile']}" if load.get("profile") else "",
        "chats" if load.get("chat") else "completions",
        f"{load['images']} image{'s' * (load['images'] > 1)} of {size} each"
        if load.get("images")
        else "",
        _FORMS.get(load.get("prompts") or "", ""),
        f"{load['unanswered_of_file']} conversations of the file left out: they have no answer"
        if load.get("unanswered_of_file")
        else "",
        f"{load['rate_per_s']:g} a second" if load.get("rate_per_s") else "",
        f"{load['rounds']} rounds" if load.get("rounds", 1) > 1 else "",
    ]
    return ", ".join(word for word in words if word)


def name_engine(result: Mapping[str, Any]) -> str:
    """Name the engine of a result, or of a plan, with variant and version."""
    return " ".join(str(result["engine"][key]) for key in ("name", "variant", "version"))


def _list_figures(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures that benches compare, by name; more is better."""
    figures = {"memory": result["memory"]["bytes_per_s"]}
    if result["layer"]["available"]:
        figures["layer"] = result["layer"]["rows"][0]["bytes_per_s"]
    for level in result["serve"]["levels"]:
        name = level.get("name") or f"{level['concurrency']} at once"
        figures[name] = level["aggregate_tok_s"]
    return {name: value for name, value in figures.items() if value}
