"""What is recognised in counters, speeds and disks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import FULL_BYTES, FULL_SHARE, format_bytes, is_nearly_full
from kimi_prov.operate.diagnosis.rules.registry import register_rule
from kimi_prov.planner.findings import Observation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.operate.diagnosis.evidence import Evidence
    from kimi_prov.planner.registry.definition import Severity

# Below this share of the slowest speed that the plan predicts.
_MUCH_SLOWER = 0.7
# Fewer tokens or requests than these say nothing.
_MIN_TOKENS, _MIN_REQUESTS = 1000, 20
_MANY_PREEMPTIONS = 0.01
# An engine that waits for a block of shared memory is normal while a model compiles or loads; three
# minutes of it in a row are not.
_NO_BLOCK = re.compile(r"No available shared memory broadcast block found in \d+ second")
_WAITED_MINUTES = 3


def _has_moved(first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    """Whether an engine did anything between two readings: it counts steps of a long prompt."""
    names = (
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:iteration_tokens_total_count",
        "sglang:generation_tokens_total",
        "sglang:prompt_tokens_total",
    )
    return any(second.get(name) != first.get(name) for name in names)


@register_rule("diagnose.no_progress")
def detect_no_progress(evidence: Evidence) -> Observation | None:
    """Report requests that run while no counter of the engine moves."""
    for row in evidence.metrics:
        running = row.state.running if row.state else 0
        if not running or row.second is None or _has_moved(row.first, row.second):
            continue
        waits = evidence.last(_NO_BLOCK, least=_WAITED_MINUTES)
        stuck = waits is not None and not waits.over
        return Observation(
            observed=f"{row.unit}: {running:.0f} running, and in {row.apart_s:.0f} s no token of a "
            "prompt or an answer",
            required="tokens, where requests run (a long prompt may take longer than that)",
            fix="run this again; where it stays so:  systemctl restart 'kimi-serve@*'  on the "
            "machine",
            severity="blocker" if stuck else "warning",
        )
    return None


@register_rule("diagnose.hang")
def detect_hang(evidence: Evidence) -> Observation | None:
    """Report an engine that the watchdog saw hang, and what each of its processes did."""
    last = evidence.hang
    if not last:
        return None
    over = isinstance(last.get("served_again_s"), int | float)
    ended = f"it went on {last['served_again_s']:.0f} s after its last step" if over else "since"
    many = len(evidence.hangs)
    severity: Severity = "warning" if evidence.serving else "blocker"
    return Observation(
        observed=f"{last.get('unit')}, {last.get('at')}: {last.get('why')} ({last.get('done')}); "
        f"{ended}{f'; {many} bundles are kept' if many > 1 else ''}",
        required="an engine that goes on while requests wait",
        fix="read hangs/ in the bundle: the process in stacks.txt that waits for nobody is the one "
        "that stands still; where it comes again set another kimi_engine_version and apply, and "
        "report it to the engine's project with this bundle",
        severity="info" if over and many < 2 else severity,
    )


@register_rule("diagnose.disk_full")
def detect_disk_full(evidence: Evidence) -> Observation | None:
    """Report full file systems: a running engine goes on, but its next start may fail."""
    full = [row for row in evidence.disks if is_nearly_full(row.free, row.size)]
    if not full:
        return None
    disks = "; ".join(
        f"{row.path}: {format_bytes(row.free)} of {format_bytes(row.size)} free" for row in full
    )
    return Observation(
        observed=disks,
        required=f"{FULL_SHARE:.0%} of it, or {format_bytes(FULL_BYTES)}",
        fix="kimi-prov clean INVENTORY  removes versions and models that nothing uses; then see "
        "what else grows there (du -xh --max-depth=2)",
        severity="warning" if evidence.serving else "blocker",
    )


@register_rule("diagnose.preemptions")
def detect_preemptions(evidence: Evidence) -> Observation | None:
    """Report a cache that is too small for the requests that run at once."""
    for row in evidence.metrics:
        lost = row.state.preemptions if row.state else None
        done = row.first.get("vllm:request_success_total") or row.first.get(
            "sglang:num_requests_total"
        )
        if lost and done and done >= _MIN_REQUESTS and lost / done > _MANY_PREEMPTIONS:
            return Observation(
                observed=f"{row.unit}: {lost:.0f} preemptions in {done:.0f} requests",
                required="less than one in a hundred",
                fix="set a smaller kimi_concurrency or kimi_context, or kimi_kv_dtype: fp8; then "
                "apply (only the slowest requests show it)",
                severity="warning",
            )
    return None


@register_rule("diagnose.slower")
def detect_slower(evidence: Evidence) -> Observation | None:
    """Compare the mean time between tokens with the slowest that the plan predicts."""
    expected = _find_expected_speed(evidence)
    for row in evidence.metrics if expected else ():
        for name in ("vllm:inter_token_latency_seconds", "sglang:inter_token_latency_seconds"):
            seconds, count = row.first.get(f"{name}_sum"), row.first.get(f"{name}_count")
            if not seconds or not count or count < _MIN_TOKENS:
                continue
            speed = count / seconds
            if speed < _MUCH_SLOWER * expected:
                return Observation(
                    observed=f"{row.unit}: {speed:.1f} tokens a second and request, over "
                    f"{count:.0f} tokens",
                    required=f"{expected:.1f} or more, by the plan",
                    fix="kimi-prov bench INVENTORY  says where it lies: compare it with a bench of "
                    "the version before, and look at clocks and placement in  kimi-prov status",
                    severity="warning",
                )
    return None


def _find_expected_speed(evidence: Evidence) -> float:
    """Return the slowest speed of a request that the plan predicts; 0 where it predicts none."""
    if evidence.planned("model", "random_weights") is not False:
        return 0.0
    one = evidence.figure("throughput", "decode_tok_s", "low")
    together = evidence.figure("throughput", "aggregate_tok_s", "low")
    at_once = evidence.figure("throughput", "concurrency")
    speeds = [one] if one else []
    speeds += [together / at_once] if together and at_once else []
    return min(speeds, default=0.0)
