"""The measurements of a machine, the values that they replace, and their effect on predictions.

Decides: what a measured part of a machine counts for, and a bench of it (which parts a plan
  uses).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from kimi_prov.facts import gpu_names
from kimi_prov.facts.host import read_host
from kimi_prov.planner.engine import sglang
from kimi_prov.planner.plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.planner.throughput import Gpus

_GB = 1e9
_MEASURED = "measured"


def make_document(
    facts: Facts,
    plan: MachinePlan,
    settings: Settings,
    catalogue: Catalogue,
) -> dict[str, Any] | None:
    """Make `measured` and `effect` of a target, by planning it again without its measurements.

    None where the prediction uses no measurement.
    """
    bare = drop_measurements(facts)
    parts = _list_used_parts(plan)
    rows = [
        {key: row[key] for key in ("what", "measured", "instead_of", "unit")}
        for row in _list_measurements(_read_host(facts, catalogue), _read_host(bare, catalogue))
        if row["part"] in parts
    ]
    rows += _list_readings(plan)
    if not rows:
        return None
    before: Mapping[str, Any] = make_plan(bare, settings, catalogue)["throughput"]
    effect = {
        key: {"before": before[key], "after": after}
        for key, after in plan["throughput"].items()
        if _has_figures(after) and _has_figures(before.get(key))
    }
    return {"measured": rows, "effect": effect or None}


def drop_measurements(facts: Facts) -> Facts:
    """Return the facts without measurements."""
    origins = facts.get("origins") or {}
    bare = copy.deepcopy(facts)
    bandwidth = bare["memory"].get("bandwidth_bytes_per_s")
    if bandwidth:
        bandwidth["measured"] = None
    for index, disk in enumerate(bare.get("disks") or ()):
        if origins.get(f"disks[{index}].read_bytes_per_s") == _MEASURED:
            disk["read_bytes_per_s"] = None
    for gpu in bare["gpus"]:
        gpu.pop("measured", None)
    bare["measured"] = None
    bare.pop("bench", None)
    return bare


def _list_readings(plan: MachinePlan) -> list[dict[str, Any]]:
    """List the speeds that a bench measured, with the prediction for the same load."""
    return [
        {
            "what": f"{row['quantity']} of {row['input_tokens']} + {row['output_tokens']} tokens, "
            f"{row['concurrency']} at once",
            "measured": row["measured"],
            "instead_of": row["predicted"],
            "unit": "tokens/s",
        }
        for row in plan["throughput"].get("anchors") or ()
    ]


def _list_used_parts(plan: MachinePlan) -> set[str]:
    """Name the parts of the machine on which this plan's prediction depends."""
    if plan["throughput"]["decode_tok_s"]["expected"] is None:
        return set()
    if plan["memory"]["weights_bytes_per_gpu"] is None:
        return {"disk", "memory"}
    if plan["hybrid"] is None:
        return {"disk", "gpu_memory", "matrix"}
    streamed = sglang.choose_gpu_prefill_threshold(plan["hybrid"]["method"]) is not None
    return {"disk", "memory", "gpu_memory", *(("copy", "matrix") if streamed else ())}


def _read_host(facts: Facts, catalogue: Catalogue) -> Host:
    return read_host(gpu_names.add_known_gpus(facts, catalogue), catalogue)


def _list_measurements(host: Host, bare: Host) -> list[dict[str, Any]]:
    """List the measurements of a machine; `bare` is the same machine without them."""
    from kimi_prov.planner.throughput import measured, physics, prediction  # noqa: PLC0415
    from kimi_prov.planner.throughput.estimate import DISK_GB_S  # noqa: PLC0415

    cpu, _ = prediction.make_cpu(bare)
    sheet = prediction.make_gpus(bare)

    def share(of: Callable[[Gpus], float], times: float = 1.0) -> float | None:
        return of(sheet) * times if sheet else None

    candidates = [
        (
            "memory",
            "memory bandwidth",
            host.bandwidth.measured / _GB,
            cpu.bandwidth_gb_s * physics.STREAM_OF_THEORY if cpu else None,
            "GB/s",
        ),
        (
            "disk",
            "speed of the disk",
            host.measured.disk_bytes / _GB,
            prediction.find_disk_speed(bare) or DISK_GB_S,
            "GB/s",
        ),
        (
            "gpu_memory",
            "bandwidth of a GPU's memory",
            host.measured.gpu_bytes / _GB,
            share(lambda gpus: gpus.bandwidth_gb_s, measured.COPY_OF_THEORY),
            "GB/s",
        ),
        (
            "copy",
            "speed of copies to a GPU",
            host.measured.gpu_copy / _GB,
            share(lambda gpus: gpus.pcie_gb_s),
            "GB/s",
        ),
        (
            "matrix",
            "matrix rate of a GPU",
            host.measured.bf16_flops / 1e12,
            share(lambda gpus: gpus.tflops, measured.PRODUCT_OF_THEORY),
            "TFLOP/s in bf16",
        ),
    ]
    return [
        {
            "part": part,
            "what": what,
            "measured": _round(value),
            "instead_of": _round(usual),
            "unit": unit,
        }
        for part, what, value, usual, unit in candidates
        if value
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _has_figures(value: object) -> bool:
    """Whether a value is a range with figures."""
    return isinstance(value, dict) and bool(value.get("expected"))
