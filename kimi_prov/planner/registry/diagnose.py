"""Findings of `diagnose`: what it recognises in the logs and metrics of a machine that serves.

Decides: what `diagnose` recognises (titles and sources).
"""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition, Remedy, Severity

# The problem keeps the model from serving now; it was seen, but the model serves; it was over at
# the last successful start.
_STATES: tuple[Severity, ...] = ("blocker", "warning", "info")


def _define(
    identity: str,
    title: str,
    source: str,
    remedy: Remedy = "setting",
    severities: tuple[Severity, ...] = _STATES,
) -> Definition:
    return Definition(
        identity,
        title=title,
        severities=severities,
        source=source,
        remedy=remedy,
        concerns="deployment",
    )


DEFINITIONS = (
    _define(
        "diagnose.disk_full",
        "A file system of the machine has hardly any room",
        "statvfs; the bounds of the alert KimiDiskFull",
        "depends",
        ("blocker", "warning"),
    ),
    _define(
        "diagnose.down",
        "A unit that the model needs does not run",
        "systemd, and the last line of the unit's journal that names an error",
        "depends",
        ("blocker",),
    ),
    _define(
        "diagnose.gateway_ahead",
        "A gateway will leave a machine out, or counts keys' use wrongly",
        "the certificates that the gateway pinned, and the machines' clocks; the alerts "
        "KimiGatewayCertificateExpires and KimiClocksApart",
        "depends",
        ("warning",),
    ),
    _define(
        "diagnose.gateway_machine_out",
        "A gateway leaves a machine out, while others answer",
        "HAProxy's own checks; the alert KimiGatewayMachineOut",
        "depends",
        ("warning",),
    ),
    _define(
        "diagnose.gateway_no_machine",
        "A gateway reaches no machine",
        "HAProxy's own checks; the alert KimiGatewayNoMachine",
        "depends",
        ("blocker",),
    ),
    _define(
        "diagnose.gateway_split",
        "Both gateways have the shared address",
        "the addresses of both at the same time; the alert KimiGatewaySplit",
        "depends",
        ("blocker",),
    ),
    _define(
        "diagnose.hang",
        "An engine hung: requests waited and no step came",
        "what the watchdog saw and kept; github.com/vllm-project/vllm/issues/27313, 46611",
        "process",
    ),
    _define(
        "diagnose.head_lost",
        "The other hosts of the group lost the one that leads them",
        "github.com/vllm-project/vllm/issues/32136",
        "process",
    ),
    _define(
        "diagnose.no_progress",
        "Requests run and no token comes",
        "two readings of the engine's own counters; github.com/gpustack/gpustack/issues/3888",
        "process",
        ("blocker", "warning"),
    ),
    _define(
        "diagnose.preemptions",
        "Requests lose their place in the cache and are computed again",
        "the engine's own counters",
        severities=("warning",),
    ),
    _define(
        "diagnose.prefill_threshold",
        "KTransformers computes long prompts on the GPU layer by layer: answers may be gibberish",
        "github.com/kvcache-ai/ktransformers/issues/1816, 1866",
        severities=("warning",),
    ),
    _define(
        "diagnose.resting",
        "The machine does not serve on purpose: it is stopped, or asleep",
        "the mark that kimi-prov stop and kimi-idle leave (/var/lib/kimi/state/stopped.json)",
        "process",
        ("warning", "info"),
    ),
    _define(
        "diagnose.sleep_weights",
        "The engine was woken from sleep of level 2 without its weights: it answers nonsense",
        "github.com/vllm-project/vllm/pull/54235, issues/29341",
        "process",
    ),
    _define(
        "diagnose.slow_load",
        "Loading the weights takes long",
        "github.com/modelplaneai/modelplane/issues/204; github.com/vllm-project/vllm/pull/14447",
        "depends",
        ("warning",),
    ),
    _define(
        "diagnose.slower",
        "Tokens come slower than the plan predicts",
        "github.com/vllm-project/vllm/issues/43153: a version alone cost 38 %",
        "depends",
        ("warning",),
    ),
)
