"""Results of a bench in the form of the contract: a recorded machine, its plan, made-up speeds."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

from kimi_prov.acceptance import bench
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.documents import read_document
from kimi_prov.facts import recording, spec
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

ROOT = Path(__file__).resolve().parents[2]
H200 = ROOT / "tests" / "data" / "recordings" / "h200-x8"
HYBRID = ROOT / "inventories" / "specs" / "reference-000.yml"
_OF_PLAN = ("engine", "model", "throughput", "parallel", "hybrid", "experts", "stand_in")


@functools.cache
def _machine(path: Path, model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if path.is_dir():
        facts = recording.read_recording(path)
    else:
        facts = spec.parse_sheet(
            read_document(path, what="a sheet", limit=1 << 20, fix=""), load_catalogue()
        )
    return facts, make_plan(
        facts, parse_settings({"kimi_model": model}, host="x"), load_catalogue()
    )


def facts_of(path: Path = H200, model: str = "kimi-k2.5") -> dict[str, Any]:
    """Facts of a machine whose every name is one that must not get out."""
    facts = copy.deepcopy(_machine(path, model)[0])
    facts["host"]["hostname"] = "secret-node"
    facts["origin"]["name"] = "secret-node"
    return facts


def level(concurrency: int, decode: float, aggregate: float, prefill: float) -> dict[str, Any]:
    """Speeds of one number of requests at once, in tokens a second."""
    return {
        "concurrency": concurrency,
        "requests": max(3, 2 * concurrency),
        "failed": 0,
        "seconds": 100.0,
        "input_tokens": 3000,
        "output_tokens": 600,
        "ttft_s": {"median": 1.0, "p99": 2.0},
        "tpot_s": {"median": 1 / decode, "p99": 2 / decode},
        "decode_tok_s": decode,
        "aggregate_tok_s": aggregate,
        "prefill_tok_s": prefill,
    }


def loaded(level: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Add what a bench with rounds tells beside speeds, on a machine with eight GPUs."""
    speed = level["aggregate_tok_s"]
    watts = 2000.0 + 30 * level["concurrency"]
    return {
        **level,
        "rounds": 3,
        "left_out": 0,
        "itl_s": {"median": level["tpot_s"]["median"], "p99": level["tpot_s"]["p99"]},
        "spread": {
            "decode_tok_s": {"low": level["decode_tok_s"] * 0.9, "high": level["decode_tok_s"]},
            "aggregate_tok_s": {"low": speed * 0.9, "high": speed * 1.1},
            "prefill_tok_s": None,
            "ttft_s": {"low": 0.9, "high": 1.2},
        },
        "engine": {
            "samples": 90,
            "cache_use": {"mean": 0.2, "max": min(0.99, 0.012 * level["concurrency"])},
            "running": {"mean": level["concurrency"] * 0.9, "max": float(level["concurrency"])},
            "waiting": {"mean": 0.5, "max": 4.0},
            "preemptions": 7 if level["concurrency"] >= 64 else 0,
            "prefix_cache": {"queried_tokens": 1000, "hit_tokens": 40, "hit_share": 0.04},
            "reason": None,
        },
        "power": {
            "gpus": 8,
            "samples": 90,
            "watts": {"mean": watts, "max": watts * 1.1},
            "joules": watts * 100,
            "tokens_per_joule": round(speed / watts, 4),
            "reason": None,
        },
        **more,
    }


def asked_load(**more: Any) -> dict[str, Any]:
    """What was asked, in the machine's own words: the load that the plan predicts."""
    found = {
        "profile": None,
        "requests": None,
        "rate_per_s": None,
        "rounds": 3,
        "chat": False,
        "images": 0,
        "image_width": None,
        "image_height": None,
        "prompts": None,
        "prompts_of_file": None,
        "images_of_file": None,
        "unanswered_of_file": None,
        "input_tokens": 8192,
        "output_tokens": 1024,
        "chosen_lengths": True,
    }
    return {**found, **more}


def result(
    *levels: dict[str, Any],
    path: Path = H200,
    model: str = "kimi-k2.5",
    lengths: tuple[int, int] = (8192, 1024),
    variables: dict[str, Any] | None = None,
    asked: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One host's result, as the control machine makes it of the machine's answer."""
    plan = _machine(path, model)[1]
    measured = {
        "plan": {
            **{name: plan.get(name) for name in _OF_PLAN},
            "instances": len(plan["instances"]),
        },
        "load": 0.1,
        "busy": False,
        "facts": {**facts_of(path, model), "collected_at": "2026-11-21T06:00:00Z"},
        "memory": {
            "bytes_per_s": 600_000_000_000,
            "by": "probe",
            "reason": None,
            "seconds": 3.0,
            "nodes": [],
        },
        "layer": {"available": False, "reason": "not asked"},
        "serve": {
            "input_tokens": lengths[0],
            "output_tokens": lengths[1],
            "levels": list(levels)
            or [level(1, 100.0, 95.0, 9000.0), level(16, 30.0, 420.0, 900.0)],
        },
    }
    if asked:
        for row in measured["serve"]["levels"]:
            for name, value in (("rounds", 1), ("left_out", 0)):
                row.setdefault(name, value)
        warm = {"concurrency": 1, "requests": 1, "failed": 0, "seconds": 2.5}
        warm["ttft_s"] = {"median": 2.25, "p99": None}
        measured["serve"] |= {"load": asked_load(**asked), "warm_up": warm}
    return bench.make_document(copy.deepcopy(measured), [], variables or {})


def written(folder: Path, **hosts: dict[str, Any]) -> Path:
    """Write a bench document of these hosts; an underscore in a name is a hyphen."""
    named = {name.replace("_", "-"): host for name, host in hosts.items()}
    document = {"schema": "kimi-prov/bench/v1", "ok": True, "hosts": named}
    path = folder / "bench.json"
    path.write_text(json.dumps(document))
    return path
