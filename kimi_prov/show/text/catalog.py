"""Rows of the catalogue as tables, or one name's rows in full."""

from __future__ import annotations

from typing import Any

from kimi_prov.contract import clean_text
from kimi_prov.show.text.tables import break_line
from kimi_prov.show.text.tables import format_table as table_lines

Document = dict[str, Any]
# Columns beside name and day.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "models": ("confidence", "native_format", "context", "released"),
    "unserved": ("confidence", "released", "reason"),
    "drafts": ("confidence", "method", "models", "least"),
    "formats": ("confidence", "kind", "expert_bytes", "rest_bytes"),
    "cpus": ("confidence", "cores", "memory_channels", "memory_mt_s", "bandwidth_gb_s"),
    "gpus": ("confidence", "memory_gb", "bandwidth_gb_s", "compute_capability"),
    "servers": ("confidence", "cpu", "sockets", "gpu", "gpus"),
    "clouds": ("confidence", "cloud", "gpu", "gpus", "memory_gb"),
    "engines": ("confidence", "variant", "version", "torch", "cuda", "driver_branch"),
    "flags": ("engine", "replacement"),
    "flags.accepted": ("versions", "flags"),
    "systems": ("glibc", "python", "nvidia_driver", "proven"),
    "pythons": ("confidence", "build", "glibc"),
    "web": ("confidence", "variant", "version", "licence"),
    "drivers.cuda": ("confidence", "driver", "compatible_driver"),
    "drivers.torch": ("confidence", "torch", "cuda", "driver_branch"),
    "drivers.rules": ("text",),
    "drivers.packages": ("packages",),
    "drivers.releases": ("confidence", "version"),
    "drivers.repositories": ("confidence", "url", "fingerprint"),
    "prices.api": ("confidence", "input_usd_per_mtok", "output_usd_per_mtok"),
    "prices.gpu_hour": ("confidence", "neocloud_usd", "rental_3_years_usd", "power_kw"),
    "prices.rent": ("confidence", "low_usd", "usual_usd", "high_usd"),
    "prices.machine_hour": ("confidence", "usd"),
    "prices.storage": ("confidence", "usd_per_gb_month", "title"),
    "prices.purchase": ("confidence", "low_usd", "high_usd"),
    "prices.parts": ("confidence", "unit", "low_usd", "high_usd"),
    "prices.assumptions": ("value", "unit"),
    "broken": ("severity", "title"),
    "groups": ("confidence", "ran", "hosts", "gpus", "tensor", "pipeline", "data", "title"),
    "loads.ways": ("confidence", "gb_s", "counted", "least", "before"),
    "loads.times": ("version", "model", "layers", "gpu", "gpus", "seconds"),
}
_INDENT = "  "


def format_text(document: Document, width: int | None = None) -> str:
    """Write rows as tables, or one name's rows in full.

    `width`: columns of a terminal; without one, each row and each entry is one line.
    """
    if document["name"] is not None:
        return "\n\n".join(_format_row(row, width) for row in document["rows"]) + "\n"
    if not document["rows"]:
        return "no such rows\n"
    kinds = list(dict.fromkeys(row["part"] for row in document["rows"]))
    laid = [
        _format_table(kind, [r for r in document["rows"] if r["part"] == kind], width)
        for kind in kinds
    ]
    return "\n\n".join(laid) + "\n"


def _format_table(kind: str, rows: list[Document], width: int | None) -> str:
    columns = ["name", "checked", *(c for c in _COLUMNS[kind] if any(c in row for row in rows))]
    cells = [[_format_column(row, column) for column in columns] for row in rows]
    room = width and width - len(_INDENT)
    return "\n".join([f"{kind}:", *(_INDENT + line for line in table_lines(columns, cells, room))])


def _format_column(row: Document, column: str) -> str:
    cell = _format_value(row.get(column))
    if column == "name" and row["status"] != "available":
        return f"{cell}, {row['status']}"
    return cell


def _format_row(row: Document, width: int | None) -> str:
    lines = [f"{_format_value(row['name'])} ({row['part']})"]
    for key, value in row.items():
        if key not in ("name", "part") and value not in (None, (), [], ""):
            lines += _format_entry(key, value, _INDENT)
    return "\n".join(part for line in lines for part in break_line(line, width))


def _format_entry(key: str, value: Any, indent: str) -> list[str]:  # noqa: ANN401
    if isinstance(value, dict):
        inner = [line for k, v in value.items() for line in _format_entry(k, v, indent + "  ")]
        return [f"{indent}{key}:", *inner]
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
        return [
            f"{indent}{key}:",
            *(f"{indent}  - {_format_value(list(v.values()))}" for v in value),
        ]
    return [f"{indent}{key}: {_format_value(value)}"]


def _format_value(value: Any) -> str:  # noqa: ANN401
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_format_value(part) for part in value if part is not None)
    # A site's own rows may hold anything: a second line in a value must not look like another row.
    return clean_text.clean_row(value)
