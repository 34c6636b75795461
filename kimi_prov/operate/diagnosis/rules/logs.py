"""What is recognised in the lines that engines and the kernel wrote."""

from __future__ import annotations

import json
import re

from kimi_prov.operate.diagnosis.evidence import Evidence, Hit
from kimi_prov.operate.diagnosis.rules.registry import (
    make_observation,
    register_rule,
)
from kimi_prov.planner.findings import Observation

# A disk of 1 GB/s reads the largest model in this time.
_SLOW_LOAD_S = 900
# Or so many times the slowest load that the plan predicts.
_SLOWER_LOAD = 1.5


_LOADED = re.compile(r"Loading weights took ([\d.]{1,12}) seconds")


@register_rule("diagnose.slow_load")
def detect_slow_load(evidence: Evidence) -> Observation | None:
    """Report weights that took longer to load than the plan predicts or a slow disk needs."""
    hit = evidence.last(_LOADED)
    match = _LOADED.search(hit.entry.message) if hit else None
    limit = max(_SLOW_LOAD_S, _SLOWER_LOAD * (evidence.figure("throughput", "load_s", "high") or 0))
    if hit is None or match is None or float(match[1]) <= limit:
        return None
    return Observation(
        observed=hit.observed,
        required=f"at most {limit:.0f} s",
        fix="keep the weights on disks of the machine itself, NVMe; kimi_ram_disk: auto keeps them "
        "in memory where there is room;  kimi-prov probe --measure  tells what the disk gives",
        severity="warning",
    )


_HEAD = re.compile(
    r"recvValue failed on SocketImpl|Failed to recv, got 0 bytes|"
    r"Failed to check the \"should dump\" flag on TCPStore"
)


@register_rule("diagnose.head_lost")
def detect_head_lost(evidence: Evidence) -> Observation | None:
    """Report ranks whose head ended: they do not reconnect by themselves."""
    hit = evidence.last(_HEAD)
    return make_observation(
        evidence,
        hit if evidence.planned("group") else None,
        "look why the head's engine ended (its own findings), and restart the group as a whole: "
        "systemctl restart kimi-serve@0 on the head",
    )


_THRESHOLD = re.compile(r"kt[-_]gpu[-_]prefill[-_]token[-_]threshold['\"]?[=\s,]+['\"]?(\d{1,9})")


@register_rule("diagnose.prefill_threshold")
def detect_prefill_threshold(evidence: Evidence) -> Observation | None:
    """Report the flag, in the plan or in the arguments that the engine logged."""
    planned = _THRESHOLD.search(json.dumps(evidence.planned("instances")))
    hit = evidence.last(_THRESHOLD)
    if planned is None and hit is None:
        return None
    where = (
        hit.observed if hit else f"the plan's command line has it, with {planned and planned[1]}"
    )
    return Observation(
        observed=where,
        required="no such flag, or a prompt above it that was compared with one below",
        fix="take kt-gpu-prefill-token-threshold out of kimi_engine_args and apply",
        severity="warning",
    )


_SLEPT = re.compile(r"/sleep\?(?:\S*&)?level=2\b")
_WOKEN = re.compile(r"/wake_up\b|to wake up tags \[[^]]*weights")
_RELOADED = re.compile(r"Reloading weights in-?place", re.I)


@register_rule("diagnose.sleep_weights")
def detect_sleep_weights(evidence: Evidence) -> Observation | None:
    """Report an engine that woke from a sleep in which it dropped its weights."""
    for entries in evidence.engines():
        slept, woken, count = False, None, 0
        for entry in entries:
            if _SLEPT.search(entry.message):
                slept, woken = True, None
            elif _RELOADED.search(entry.message):
                slept, woken = False, None
            elif slept and _WOKEN.search(entry.message):
                woken, count = entry, count + 1
        if woken is not None:
            hit = Evidence(logs={woken.unit: entries}).last(re.compile(re.escape(woken.message)))
            over = hit is not None and hit.over
            return make_observation(
                evidence,
                Hit(woken, count, over),
                "restart the engine: systemctl restart 'kimi-serve@*'; a sleep of level 2 needs "
                "collective_rpc reload_weights between the weights and the cache",
            )
    return None
