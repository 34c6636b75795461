"""Models, processors and GPUs by name, with the figures that speed depends on.

Processors and GPUs are the catalogue's. catalog/speed_subjects.yaml has the shapes of models, the
words of rows for a GPU, and substitutes for parts that a source left out. A name is searched inside
a longer text; the longest match counts.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from kimi_prov.catalog import model_bytes as counting
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.catalog.names import list_name_forms
from kimi_prov.catalog.row_files import HERE
from kimi_prov.catalog.versions import parse_version
from kimi_prov.documents import Document
from kimi_prov.planner.throughput.inputs import Cpu, Gpus, ModelShape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.catalog.hardware import Cpu as CatalogueCpu
    from kimi_prov.catalog.hardware import Gpu
    from kimi_prov.catalog.models import Architecture

CATALOGUE = HERE
_T = TypeVar("_T")


def make_shape(name: str, a: Architecture) -> ModelShape:
    """Make a shape from the dimensions of a catalogue's model (MLA attention, routed experts)."""
    sparse = a.layers - a.dense_layers
    always = (
        counting.count_attention_params(a) + counting.count_other_params(a) - a.vocab * a.hidden
    )
    return ModelShape(
        name=name,
        layers=a.layers,
        moe_layers=sparse,
        experts=a.experts,
        experts_per_token=a.experts_per_token,
        params_per_expert=3 * a.hidden * a.expert_width,
        always_params=always,
        total_params=counting.count_total_params(a),
        kv_bytes_per_token=counting.count_kv_bytes_per_token(a),
        attention_width=a.heads * (a.qk_nope_head_dim + a.qk_rope_head_dim + a.v_head_dim),
        hidden=a.hidden,
    )


def find_model(name: str) -> ModelShape | None:
    """Find the shape of a model that measured rows name; None for an unknown model."""
    row = find_row(((n, row) for row in _read_table("models") for n in row["names"]), name)
    if row is None:
        return None
    return ModelShape(name=name, **{key: v for key, v in row.items() if key != "names"})


def find_gpus(name: str, count: int) -> Gpus | None:
    """Find GPUs by name ("H200 SXM", "8x RTX 4090 48GB"); None where none is known."""
    rows = {n: row for row in load_catalogue().gpus for n in (row.name, *row.aliases)}
    words = {word: rows[card] for word, card in _read_table("gpu_words").items()}
    row = find_row([*rows.items(), *words.items()], name)
    return None if row is None else make_gpus(row, count)


def make_gpus(row: Gpu, count: int) -> Gpus:
    """Make GPUs from a row of the catalogue."""
    return Gpus(
        name=row.name,
        count=count,
        bandwidth_gb_s=row.bandwidth_gb_s,
        memory_gb=row.memory_gb,
        vendor="AMD" if row.vendor == "amd" else "NVIDIA",
        nvlink_gb_s=row.nvlink_gb_s,
        tflops_bf16=row.tflops_bf16,
        pcie_gb_s=row.pcie_gb_s,
        narrowest_bits=_find_narrowest_bits(row),
    )


def _find_narrowest_bits(row: Gpu) -> int:
    """Find the narrowest bits: eight since Ada, Hopper and MI300, four since Blackwell and MI350.

    Workstation Blackwell (12.0) could multiply four bits, but the engines' mixture kernels for four
    are for 10.x, and on 12.0 they widen the numbers.
    """
    if row.vendor == "amd":
        return 4 if row.name.startswith("MI35") else 8
    capability = parse_version(row.compute_capability or "0")
    if (10, 0) <= capability < (12, 0):
        return 4
    return 8 if capability >= (8, 9) else 16


def make_unspecified_gpus(count: int) -> Gpus:
    """Make substitutes for cards that a source describes only as consumer cards."""
    row = _read_table("unspecified")["gpu"]
    return Gpus(
        name=row["name"],
        count=count,
        bandwidth_gb_s=row["gb_s"],
        memory_gb=row["memory_gb"],
        vendor=row["vendor"],
        nvlink_gb_s=row["nvlink_gb_s"],
        tflops_bf16=row["tflops"],
        pcie_gb_s=row["pcie_gb_s"],
    )


def find_cpu(name: str, sockets: int) -> Cpu | None:
    """Find processors by name, with all channels populated; None for an unknown name."""
    row = find_row(
        ((form, row) for row in load_catalogue().cpus for form in list_name_forms(row.name)), name
    )
    if row is not None:
        return make_cpu(row, sockets)
    named = find_row(((row["name"], row) for row in _read_table("cpus")), name)
    return None if named is None else _make_table_cpu(named, sockets)


def _make_table_cpu(row: dict[str, Any], sockets: int) -> Cpu:
    links = row.get("links_gb_s")
    return Cpu(
        sockets=sockets,
        cores=row["cores"] * sockets,
        bandwidth_gb_s=row["gb_s"] * sockets,
        links_gb_s=links * sockets if links else None,
        vector=row["vector"],
    )


def make_cpu(row: CatalogueCpu, sockets: int) -> Cpu:
    """Make processors from a row of the catalogue, with all channels populated."""
    measured = row.measured_bandwidth_gb_s
    return Cpu(
        sockets=sockets,
        cores=row.cores * sockets,
        bandwidth_gb_s=row.bandwidth_gb_s * sockets,
        measured_gb_s=measured * sockets if measured else None,
        links_gb_s=row.links_gb_s * sockets if row.links_gb_s else None,
        vector=row.vector,
    )


def make_unspecified_cpu(text: str, sockets: int) -> Cpu:
    """Make a substitute for an unknown processor: 32 cores, eight channels of DDR5-4800."""
    return _make_table_cpu(
        _read_table("unspecified")["arm" if "arm" in text.lower() else "cpu"], sockets
    )


def find_row(rows: Iterable[tuple[str, _T]], text: str) -> _T | None:
    """Return the row with the longest name that the text contains."""
    inside = _normalize_name(text)
    hits = [(len(name), row) for name, row in rows if _normalize_name(name) in inside]
    return max(hits, key=lambda hit: hit[0])[1] if hits else None


@cache
def _normalize_name(text: str) -> str:
    return re.sub(r"[^a-z0-9.+]", "", text.lower())


@cache
def _read_document() -> dict[str, Any]:
    file = CATALOGUE / "speed_subjects.yaml"
    text = file.read_text(encoding="utf-8")
    document: dict[str, Any] = Document(file.name, text).yaml("reinstall kimi-prov", ours=True)
    return document


def _read_table(kind: str) -> Any:  # noqa: ANN401  (a section of the file)
    return _read_document()[kind]
