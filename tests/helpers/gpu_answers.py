"""What a real H100 with driver 580.159.04 answers to the query of what GPUs are at now.

Two recordings of that card, for neither has all columns; the later one wins where both have one.
"""

from __future__ import annotations

from pathlib import Path

from kimi_prov.on_host.probe import gpu_load, nvidia_smi

_RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "recordings"
_FILES = ("h100-x1-idle/query.csv", "gpu-metrics/h100-x1.csv")
# The driver's other names of the same columns.
_NAMES = {"clocks.sm": "clocks.current.sm", gpu_load.REASONS[0]: gpu_load.REASONS[1]}
# Neither recording has it; that card is in a slot with as many lanes as it has.
_UNRECORDED = {"pcie.link.width.max": "16"}
_UNITS = (" %", " MiB", " W", " MHz")


def gpu_answer(**other: str) -> str:
    """One line of the answer; `other` are fields of another moment, `__` for a dot."""
    said: dict[str, str] = {**_UNRECORDED}
    for file in _FILES:
        (row,) = nvidia_smi.parse_table((_RECORDINGS / file).read_text())
        said |= {name: _bare(value) for name, value in row.items()}
    said |= {name.replace("__", "."): value for name, value in other.items()}
    columns = (*gpu_load.COLUMNS, gpu_load.REASONS[0])
    return ", ".join(said[name] if name in said else said[_NAMES[name]] for name in columns)


def _bare(value: str) -> str:
    """A value without its unit, as `nounits` gives it."""
    unit = next((unit for unit in _UNITS if value.endswith(unit)), "")
    return value.removesuffix(unit)
