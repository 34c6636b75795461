"""Bytes of one weight in each weight format, as the catalogue has them."""

from __future__ import annotations

from kimi_prov.catalog import loader
from kimi_prov.planner.throughput.inputs import WeightFormat

# Width of the numbers that a GPU's matrix units multiply, where it is not 16.
_MULTIPLIED_BITS = {"fp8": 8, "nvfp4": 4, "mxfp4": 4}
# Experts on a GPU, and on the disk, have the format of the published files.
_ON_GPU = dict.fromkeys(("rawint4", "amxint4", "amxint8", "vllm-cpu-int4"), "int4")


def find_weight_format(name: str) -> WeightFormat:
    """Find the bytes of each weight for a format such as "int4", "rawint4" or "Q4_K_M".

    Of the GGUF kinds with which the name begins, the longest counts. Raises KeyError for an unknown
    name.
    """
    text = name.strip().lower().replace("-", "_").removeprefix("ud_")
    formats = loader.load_catalogue().formats
    named = text.replace("_", "-")
    match = next((row for row in formats if row.kind != "gguf" and row.name == named), None)
    if match is not None:
        on_gpu = loader.load_catalogue().format(_ON_GPU.get(named, named)).expert_bytes
        return WeightFormat(
            on_gpu,
            match.expert_bytes,
            match.rest_bytes,
            amx=(match.kt_method or "").startswith("AMX"),
            multiplied_bits=_MULTIPLIED_BITS.get(named, 16),
            rest_bits=8 if named == "fp8" else 16,
            integers=named == "int4",
        )
    kinds = {
        kind.lower(): row.expert_bytes
        for row in formats
        if row.kind == "gguf"
        for kind in (row.name, *row.aliases)
    }
    fitting = [kind for kind in kinds if text.startswith(kind)]
    if not fitting:
        raise KeyError(name)
    return make_uniform_format(kinds[max(fitting, key=len)])


def make_uniform_format(bytes_per_weight: float) -> WeightFormat:
    """Make a format in which all weights have one size, as the average of a GGUF file."""
    return WeightFormat(bytes_per_weight, bytes_per_weight, bytes_per_weight)
