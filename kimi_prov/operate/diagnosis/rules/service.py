"""What is recognised in what serves: at rest, behind gateways, or down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.system import units
from kimi_prov.operate.diagnosis.rules.registry import register_rule
from kimi_prov.planner.findings import Observation

if TYPE_CHECKING:
    from kimi_prov.operate.diagnosis.evidence import Evidence


@register_rule("diagnose.resting")
def detect_resting(evidence: Evidence) -> Observation | None:
    """Report a machine that was stopped on purpose: a fault only if it cannot be woken."""
    if not evidence.rest:
        return None
    failed = evidence.rest.get("failed")
    vain = f"; the last request could not wake it: {failed}" if failed else ""
    return Observation(
        observed=f"{evidence.rest['told'].partition(': kimi-prov')[0]}{vain}",
        required="a machine that serves, or rests because its operator wants that",
        fix="fix what the reason or the other findings name, then:  kimi-prov start INVENTORY"
        if failed
        else "nothing, where that is wanted; else:  kimi-prov start INVENTORY",
        severity="warning" if failed else "info",
    )


@register_rule("diagnose.gateway_split")
def detect_gateway_split(evidence: Evidence) -> Observation | None:
    """Report gateways that have one address at the same time."""
    if not evidence.split:
        return None
    return Observation(
        observed=evidence.split,
        required="one gateway that has it, and one that waits",
        fix="let both reach each other: protocol VRRP between their addresses, in the network and "
        "in packet filters of others; logs/kimi-gateway-address.service.log of both says what each "
        "heard",
        severity="blocker",
    )


def _list_hosts(evidence: Evidence) -> list[Mapping[str, Any]]:
    rows = evidence.gateway.get("hosts")
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _list_away(evidence: Evidence) -> list[str]:
    rows = [row for row in _list_hosts(evidence) if row.get("state") != "up"]
    return [f"{row.get('host')} ({row.get('state')})" for row in rows]


_SEEN = "kimi-prov status INVENTORY  says what each gateway sees; of a machine that serves:  "


@register_rule("diagnose.gateway_no_machine")
def detect_gateway_no_machine(evidence: Evidence) -> Observation | None:
    """Report a gateway without a machine to send to: its clients get 503."""
    away = _list_away(evidence)
    if not away or len(away) < len(_list_hosts(evidence)):
        return None
    return Observation(
        observed=f"none of {', '.join(away)}",
        required="a machine that takes requests",
        fix=f"{_SEEN}kimi-prov apply INVENTORY  pins its certificate and opens its port again",
        severity="blocker",
    )


@register_rule("diagnose.gateway_machine_out")
def detect_gateway_machine_out(evidence: Evidence) -> Observation | None:
    """Report machines that a gateway leaves out while others answer."""
    away = _list_away(evidence)
    if not away or len(away) == len(_list_hosts(evidence)):
        return None
    return Observation(
        observed=", ".join(away),
        required="all machines, but for those that rest or are being changed",
        fix=f"{_SEEN}kimi-prov apply INVENTORY  pins its certificate and opens its port again",
        severity="warning",
    )


@register_rule("diagnose.gateway_ahead")
def detect_gateway_ahead(evidence: Evidence) -> Observation | None:
    """Report what will soon keep requests from a machine, or makes counts wrong."""
    rows = evidence.gateway.get("warnings")
    problems = [text for text in rows if isinstance(text, str)] if isinstance(rows, list) else []
    if not problems:
        return None
    return Observation(
        observed="; ".join(problems),
        required="certificates that last, and one time everywhere",
        fix="kimi-prov apply INVENTORY  makes and pins certificates anew; have clocks kept by NTP",
        severity="warning",
    )


@register_rule("diagnose.down")
def detect_down(evidence: Evidence) -> Observation | None:
    """Report units that do not run, and the last line of the first of them."""
    if not evidence.down:
        return None
    first = evidence.down[0]
    lines = [entry.message for entry in evidence.logs.get(first, ())]
    said = units.find_cause([line for text in lines for line in text.splitlines()])
    return Observation(
        observed=f"{', '.join(evidence.down)}; {first} said: {said}",
        required="active",
        fix="fix what the other findings name, or that line; then apply",
        severity="blocker",
    )
