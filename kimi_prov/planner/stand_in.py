"""A declared substitution: a small model on CPUs serves where the planned hardware is not there.

The real plan is made first and kept beside what is carried out, its command line whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kimi_prov.planner.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.planner.settings.parsing import Wishes

MODEL = "kimi-k2-lab"
# Findings of the real plan that are as true of the machine that stands in.
_KEPT = ("driver.", "engine.draft", "engine.flag", "engine_args.")
_MOST_REQUESTS = 16


def wishes(real: Wishes, names: list[str]) -> Wishes:
    """Return the wishes of what is served instead, under the same `names`."""
    values = {
        **real.values,
        "kimi_model": MODEL,
        "kimi_weights_source": real.engine_stand_in,
        "kimi_weights_manifest": None,
        "kimi_weights_format": "auto",
        "kimi_context": "auto",
        "kimi_concurrency": min(int(real.concurrency), _MOST_REQUESTS),
        "kimi_kv_dtype": "auto",
        "kimi_kt_method": "auto",
        "kimi_kt_weights_source": None,
        "kimi_kt_weights_manifest": None,
        "kimi_engine": "auto",
        "kimi_engine_version": "auto",
        "kimi_engine_args": {},
        "kimi_speculative_model": None,
        "kimi_served_names": names,
        "kimi_engine_stand_in": None,
    }
    return replace(real, values=values, manifest=None, draft_manifest=None, kt_manifest=None)


def facts(real: Mapping[str, Any]) -> dict[str, Any]:
    """Return the machine as the stand-in sees it: without its GPUs."""
    return {**real, "gpus": [], "nvidia": None}


def laid_over(real: dict[str, Any], served: dict[str, Any]) -> dict[str, Any]:
    """Return the plan of what is served, with the real one's driver, findings and command lines."""
    said = _said(real, served)
    engine = {**served["engine"], "reason": said}
    kept = [row for row in real["findings"] if row["id"].startswith(_KEPT)]
    ids = {row["id"] for row in kept}
    rest = [row for row in served["findings"] if row["id"] not in ids]
    blockers = {row["id"] for row in real["findings"] if row["severity"] == "blocker"} - ids
    return {
        **served,
        "engine": engine,
        "driver": real["driver"],
        "nccl": real["nccl"],
        # What the real machine's driver needs is brought to this one as well.
        "packages": sorted({*served["packages"], *real["packages"]}),
        "stand_in": {
            "said": said,
            "engine": real["engine"],
            "model": real["model"],
            "instances": real["instances"],
            "blockers": sorted(blockers),
        },
        "findings": [_finding(real, said), *kept, *rest],
    }


def _said(real: Mapping[str, Any], served: Mapping[str, Any]) -> str:
    names = [
        f"{plan['engine']['name']} {plan['engine']['version']} ({plan['engine']['variant']}) with "
        f"{plan['model']['name']}"
        for plan in (served, real)
    ]
    return f"{names[0]} stands in for {names[1]} (kimi_engine_stand_in)"


def _finding(real: Mapping[str, Any], said: str) -> Finding:
    return Finding(
        id="engine.stand_in",
        severity="warning",
        title="What is served is a stand-in",
        observed=said,
        required=f"{real['model']['name']} itself; what was planned for it is in the plan's "
        "stand_in and on the machine in /etc/kimi/stood-in-for.json",
        fix="remove kimi_engine_stand_in from the inventory",
        source="the inventory",
    )
