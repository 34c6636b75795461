"""What an engine counts, as the text of its /metrics tells it."""

from __future__ import annotations

import re
from typing import Dict

_LINE = re.compile(r"^((?:vllm|sglang):\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)


def totals(metrics: str) -> Dict[str, float]:
    """Sum each count over its labels, by its name with the engine's prefix (`vllm:NAME`).

    What is no number is left out.
    """
    found: Dict[str, float] = {}
    for name, value in _LINE.findall(metrics):
        try:
            found[name] = found.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return found
