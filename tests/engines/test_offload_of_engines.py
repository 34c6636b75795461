"""The cache in host memory, by the pinned versions' own code: option, copies, place and metrics."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

ASK = """
import inspect, json
from vllm.config.cache import CacheConfig
from vllm.v1.kv_offload.cpu import spec
from vllm.v1.metrics import loggers

text = inspect.getsource(spec)
print(json.dumps({
    "default": CacheConfig().kv_offloading_size,
    "backend": CacheConfig().kv_offloading_backend,
    "shared": "SharedOffloadRegion(" in text,
    "one_copy": "replicated_layout" in text,
    "metrics": [name for name in ("hits", "queries")
                if f"vllm:external_prefix_cache_{name}" in inspect.getsource(loggers)],
}))
"""


@pytest.mark.parametrize(
    ("version", "one_copy"), [("0.19.1", False), ("0.25.1", False), ("0.32.0", True)]
)
def test_ranks_keep_one_copy_since_the_planned_version(
    version: str, one_copy: bool, parser_of: Callable[[str], Path]
) -> None:
    python = parser_of(version) / "bin" / "python"
    done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True)
    known = json.loads(done.stdout.splitlines()[-1])
    assert (known["default"], known["backend"]) == (None, "native")
    assert known["one_copy"] is known["shared"] is one_copy
    assert known["metrics"] == ["hits", "queries"]
