"""A stand-in set in the inventory: a small model on CPUs serves where the hardware is missing.

The real plan is made first. The applied plan keeps its engine, model and command lines unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.planner.findings import make_finding
from kimi_prov.planner.registry import DEFINITIONS

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.engine import EnginePlan
    from kimi_prov.planner.settings.parsing import Settings

MODEL = "kimi-k2-lab"
# Findings of the real plan that are also true of the machine with the stand-in.
_KEPT_FINDINGS = ("driver.", "engine.draft", "engine.flag", "engine_args.")
_MAX_REQUESTS = 16


def adjust_settings(real: Settings, names: list[str]) -> Settings:
    """Return the settings of the stand-in, which is served under the same `names`."""
    return replace(
        real,
        model=MODEL,
        weights_source=real.engine_stand_in,
        weights_manifest=None,
        weights_format="auto",
        context="auto",
        concurrency=min(real.concurrency, _MAX_REQUESTS),
        kv_dtype="auto",
        kt_method="auto",
        kt_weights_source=None,
        kt_weights_manifest=None,
        engine="auto",
        engine_version="auto",
        engine_args={},
        speculative="off",
        speculative_model=None,
        served_names=names,
        engine_stand_in=None,
        manifest=None,
        draft_manifest=None,
        kt_manifest=None,
    )


def remove_gpus(real: Facts) -> Facts:
    """Return the machine's facts without its GPUs, for the stand-in's plan."""
    return {**real, "gpus": [], "nvidia": None}


def merge_plans(real: MachinePlan, served: MachinePlan) -> MachinePlan:
    """Return the stand-in's plan with the real plan's driver, findings and command lines."""
    reason = _describe_reason(real, served)
    engine: EnginePlan = {**served["engine"], "reason": reason}
    kept = [row for row in real["findings"] if row["id"].startswith(_KEPT_FINDINGS)]
    ids = {row["id"] for row in kept}
    rest = [row for row in served["findings"] if row["id"] not in ids]
    lacking = [row["id"] for row in real["findings"] if row["severity"] == "blocker"]
    blockers = {name for name in lacking if not DEFINITIONS[name].moves} - ids
    return {
        **served,
        "engine": engine,
        "driver": real["driver"],
        "nccl": real["nccl"],
        # The packages that the real plan needs, such as the driver's, are installed as well.
        "packages": sorted({*served["packages"], *real["packages"]}),
        "stand_in": {
            "said": reason,
            "engine": real["engine"],
            "model": real["model"],
            "instances": real["instances"],
            "blockers": sorted(blockers),
        },
        "findings": [_make_finding(real, reason), *kept, *rest],
    }


def _describe_reason(real: MachinePlan, served: MachinePlan) -> str:
    names = [
        f"{plan['engine']['name']} {plan['engine']['version']} ({plan['engine']['variant']}) with "
        f"{plan['model']['name']}"
        for plan in (served, real)
    ]
    return f"{names[0]} stands in for {names[1]} (kimi_engine_stand_in)"


def _make_finding(real: MachinePlan, reason: str) -> Finding:
    return make_finding(
        "engine.stand_in",
        observed=reason,
        required=f"{real['model']['name']} itself; what was planned for it is in the plan's "
        "stand_in and on the machine in /etc/kimi/stood-in-for.json",
        fix="remove kimi_engine_stand_in from the inventory",
    )
