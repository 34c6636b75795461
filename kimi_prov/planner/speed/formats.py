"""Bytes of one weight in each weight format."""

from __future__ import annotations

import re

from kimi_prov.planner.speed.inputs import WeightFormat

# Bits of one weight of the published GGUF kinds, averaged over a file (llama.cpp's own table).
_GGUF_BITS = {
    "iq1_s": 1.67, "iq1_m": 1.9, "tq1_0": 1.87, "iq2_xxs": 2.2, "iq2_xs": 2.4, "iq2_kl": 2.89,
    "iq2": 2.6, "q2_k": 2.97, "iq3": 3.4, "q3_k": 3.9, "iq4_xs": 4.3, "iq4_nl": 4.5,
    "iq4_k": 4.6, "q4_0": 4.5, "q4_k": 4.85, "q5_k": 5.7, "q6_k": 6.56, "q8_0": 8.5,
}  # fmt: skip

# Engines' own formats. Scales: int4 has 16 bits for each 32 weights, kt widens them to 32; fp8 one
# scale for a block of 128 x 128; nvfp4 8 bits for each 16; mxfp4 8 for each 32. In int4, nvfp4 and
# mxfp4 files attention, shared experts and head stay at 16 bit.
_KNOWN = {
    "bf16": WeightFormat(2, 2, 2),
    "fp8": WeightFormat(1, 1, 1, multiplied_bits=8),
    "int8": WeightFormat(1, 1, 1),
    "int4": WeightFormat(0.5625, 0.5625, 2),
    "nvfp4": WeightFormat(0.5625, 0.5625, 1.7, multiplied_bits=4),
    "mxfp4": WeightFormat(0.53125, 0.53125, 2),
    "rawint4": WeightFormat(0.5625, 0.625, 2),
    "amxint4": WeightFormat(0.5625, 0.5, 2, amx=True),
    "amxint8": WeightFormat(0.5625, 1.0, 2, amx=True),
}


def weight_format(name: str) -> WeightFormat:
    """Bytes of each weight for a format such as "int4", "rawint4" or "Q4_K_M".

    Raises KeyError for a name that is not known.
    """
    text = name.strip().lower().replace("-", "_").removeprefix("ud_")
    if text in _KNOWN:
        return _KNOWN[text]
    for kind in sorted(_GGUF_BITS, key=len, reverse=True):
        if re.match(kind, text):
            return uniform(_GGUF_BITS[kind] / 8)
    raise KeyError(name)


def uniform(bytes_per_weight: float) -> WeightFormat:
    """Give every weight the same size, as in a GGUF file whose average is known."""
    return WeightFormat(bytes_per_weight, bytes_per_weight, bytes_per_weight)
