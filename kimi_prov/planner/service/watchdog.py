"""The times without a step after which an engine is suspected to hang, and known to hang.

An engine's counters change with each of its steps. The longest step computes a piece of a prompt
and a token of every request, so it takes, by the slowest speeds that the plan predicts,

    step = tokens of a piece / prefill + 1 / decode

and sglang only reports answers at every 40th step. The limit is twice that, and at least a minute,
which an engine takes to compile for a new size. vLLM without GPUs computes a prompt of an MLA model
as one piece of any length. That may take an hour, so there the use of the processors counts too: an
engine that computes has the time of the longest prompt, one that does not has that of a step with
only answers.

Decides: when an engine hangs, and what happens then (the limits).
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths
from kimi_prov.planner.settings import flag_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.plan.engine import EnginePlan
    from kimi_prov.contract.documents.plan.estimates import ThroughputPlan
    from kimi_prov.contract.documents.plan.group import GroupPlan
    from kimi_prov.contract.documents.plan.lifecycle import StacksPlan, WatchdogPlan
    from kimi_prov.planner.settings.parsing import Settings

STACKS_LOCK = "py-spy.txt"
# Seconds: the least limit, the limit without a predicted speed, and that of our own request.
_MIN_QUIET_S, _UNKNOWN_QUIET_S = 60, 120
# Seconds that a prompt may take without a prediction.
_UNKNOWN_PROMPT_S = 1800
_STEP_FACTOR = 2
# Steps of answers between two reports of sglang (its decode_log_interval).
_REPORTED_STEPS = {"ktransformers": 40}
# Checks in the shortest time that is judged.
_MIN_CHECKS = 6
_MAX_POLL_INTERVAL_S = 10
# In a group the supervisor tests the engine, and ends a round after a minute: the watchdog saves
# the stacks before that.
_GROUP_QUIET_S = 40


def make_document(
    settings: Settings,
    catalogue: Catalogue,
    engine: EnginePlan,
    flags: Mapping[str, Any],
    context: int,
    speeds: ThroughputPlan,
    group: GroupPlan | None,
) -> WatchdogPlan:
    """Return the plan's `watchdog`, in seconds, from sections that were decided before."""
    quiet, computing, reason = _choose_limits(engine, flags, context, speeds)
    serves = group is None or group["rank"] == 0
    watches = settings.watchdog and serves
    if group and watches:
        quiet = computing = _GROUP_QUIET_S
        reason = "the group's supervisor tries the engine and restarts all hosts; stacks are kept"
    if not watches:
        reason = "kimi_watchdog is false" if serves else "the group's head watches"
    return {
        "enabled": watches,
        "quiet_s": quiet,
        "computing_s": computing,
        "ask_s": max(quiet, _MIN_QUIET_S),
        "every_s": min(_MAX_POLL_INTERVAL_S, quiet // _MIN_CHECKS),
        "only_looks": bool(group),
        "reason": reason,
        "stacks": _plan_stacks(catalogue) if watches else None,
    }


def _choose_limits(
    engine: EnginePlan, flags: Mapping[str, Any], context: int, speeds: ThroughputPlan
) -> tuple[int, int, str]:
    """Return the seconds without a step, those while the engine computes, and the reason."""
    prefill, decode = speeds["prefill_tok_s"]["low"], speeds["decode_tok_s"]["low"]
    takes_whole_prompt = engine["variant"] == "cpu" and engine["name"] == "vllm"
    if not prefill or not decode:
        computing = _UNKNOWN_PROMPT_S if takes_whole_prompt else _UNKNOWN_QUIET_S
        return _UNKNOWN_QUIET_S, computing, f"no speed is predicted ({speeds['basis']})"
    answers = _REPORTED_STEPS.get(engine["name"], 1) / decode
    piece = (
        context
        if takes_whole_prompt
        else _count_chunk_tokens(
            flags.get(flag_names.find_flag_names(engine["name"]).chunk), context
        )
    )
    longest = piece / prefill + answers
    step = f"a step of {piece} tokens of a prompt takes up to {longest:.0f} s by the plan"
    if takes_whole_prompt:
        return (
            _compute_tolerance(answers),
            _compute_tolerance(longest),
            f"{step}, while it computes",
        )
    return _compute_tolerance(longest), _compute_tolerance(longest), step


def _count_chunk_tokens(value: object, context: int) -> int:
    """Return the tokens of a prompt in one step: all, if the flag holds no number."""
    try:
        tokens = int(str(value))
    except ValueError:
        return context
    return min(tokens, context) if tokens > 0 else context


def _compute_tolerance(step_s: float) -> int:
    return max(_MIN_QUIET_S, math.ceil(_STEP_FACTOR * step_s))


def _plan_stacks(catalogue: Catalogue) -> StacksPlan:
    """Return the environment of the program that reads stacks of a running process."""
    mark = hashlib.sha256(catalogue.lock(STACKS_LOCK).rstrip().encode()).hexdigest()[:12]
    env_dir = f"{paths.TOOLS}/py-spy-{mark}"
    return {"lock": STACKS_LOCK, "env_dir": env_dir, "program": f"{env_dir}/bin/py-spy"}
