"""Candidates of a tune that are flags of vLLM: loaders, drafts, captured graphs, NUMA binding.

Decides: what a tune tries, and in which order (of flags that are no variables).
Held by: tests/unit/planner/tuning/test_candidates.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov.planner.engine import speculative
from kimi_prov.planner.engine.vllm import find_graphs_off_flag
from kimi_prov.planner.settings.flag_names import VLLM, parse_int
from kimi_prov.planner.tuning.candidate import Candidate, Direction, read_flag, set_flags

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.tune import Variables
    from kimi_prov.planner.tuning.subject import Subject

_CAPTURE = "max-cudagraph-capture-size"
_BIND, _BIND_NODES = "numa-bind", "numa-bind-nodes"
_STRATEGY = "safetensors-load-strategy"
# Loaders of safetensors that bring a package of their own: they read into GPUs alone.
_GPU_LOADERS = ("fastsafetensors", "instanttensor")
_STRATEGIES = ("prefetch", "eager")
# vLLM's largest captured batch where nobody sets one (_set_cudagraph_sizes of 0.19.1 to 0.33.0):
# twice the requests at once, at most so many; on Blackwell for data centres twice that from 0.32.0.
_MAX_CAPTURED = 512
_MIN_CAPTURED = 8


def list_load_formats(subject: Subject, plan: MachinePlan, base: Variables) -> list[Candidate]:
    """Try the ways to read weights for which the engine's environment has what they need."""
    engine = plan["engine"]
    if engine["name"] != "vllm":
        return []
    args = base.get("engine_args") or subject.settings.engine_args
    if args.get(VLLM.load_format) or args.get(_STRATEGY):
        return []
    lock = subject.catalogue.lock(engine["lock"]) if engine["provisioned"] else ""
    loaders = [
        name
        for name in _GPU_LOADERS
        if plan["instances"][0]["gpus"] and re.search(rf"^{name}==", lock, re.MULTILINE)
    ]
    rows = [(f"weights by {name}", {VLLM.load_format: name}) for name in loaders]
    rows += [(f"weights read by {name}", {_STRATEGY: name}) for name in _STRATEGIES]
    return [
        Candidate("load-format", label, set_flags(subject, base, flags)) for label, flags in rows
    ]


def list_drafts(subject: Subject, plan: MachinePlan, base: Variables) -> list[Candidate]:
    """Try other lengths of the draft that serves, and none; or the drafts that could serve."""
    section, engine = plan["speculative"], plan["engine"]
    row = subject.catalogue.engine(engine["name"], engine["variant"], engine["version"])
    if section is None:
        model = subject.settings.model
        return [
            Candidate("draft", f"draft {draft.name}", _name_draft(base, draft.name))
            for draft in subject.catalogue.drafts
            if model in draft.models and row is not None and speculative.can_load(draft, row)
        ]
    now, name = section["tokens"], section["name"]
    rows: list[tuple[Direction, int]] = [("up", now + 1), ("up", now + 2)]
    rows += [("down", count) for count in (now - 1, now - 2) if count > 0]
    return [
        *(
            Candidate(
                "draft", f"{count} guesses a step", {**base, "speculative_tokens": count}, way
            )
            for way, count in rows
        ),
        Candidate("draft", f"without {name}", _name_draft(base, None)),
    ]


def _name_draft(base: Variables, name: str | None) -> Variables:
    return {**base, "speculative": name or "off", "speculative_model": name}


def list_captures(subject: Subject, plan: MachinePlan, base: Variables) -> list[Candidate]:
    """Double and halve the largest batch of which a CUDA graph is captured."""
    args = base.get("engine_args") or subject.settings.engine_args
    requests = read_flag(plan, f"--{VLLM.requests}")
    on_gpus = plan["engine"]["name"] == "vllm" and bool(plan["instances"][0]["gpus"])
    if not on_gpus or requests is None or find_graphs_off_flag(args) is not None:
        return []
    guesses = plan["speculative"]["tokens"] if plan["speculative"] else 0
    usual = min(2 * requests * (1 + guesses), _MAX_CAPTURED)
    now = parse_int(args.get(_CAPTURE)) or usual
    rows: list[tuple[Direction, int]] = [("up", 2 * now), ("down", now // 2), ("down", now // 4)]
    return [
        Candidate(
            "capture-sizes",
            f"graphs of up to {count} tokens",
            set_flags(subject, base, {_CAPTURE: count}),
            way,
        )
        for way, count in rows
        if count >= _MIN_CAPTURED
    ]


def list_bindings(subject: Subject, plan: MachinePlan, base: Variables) -> list[Candidate]:
    """Try workers that are not bound to the NUMA nodes of their GPUs, where they are."""
    if f"--{_BIND}" not in plan["instances"][0]["argv"]:
        return []
    free = set_flags(subject, base, {_BIND: None, _BIND_NODES: None})
    return [Candidate("numa", "workers on all NUMA nodes", free)]
