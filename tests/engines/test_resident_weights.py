"""Resident weights by vLLM's own code: a mapped rank holds what it holds after an ordinary load.

What only a GPU does is left to tests/gpu/test_resident_served.py.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.lab import model
from kimi_prov.packaging import engine_plugins

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "in_prepared" / "map_weights.py"


@pytest.fixture(scope="module")
def told(
    parser_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What each way held or refused, by its name."""
    folder = tmp_path_factory.mktemp("resident")
    model.make_model(folder / "model", "int4")
    _, wheel = engine_plugins.make_wheel("prepared")
    zipfile.ZipFile(io.BytesIO(wheel)).extractall(folder / "packages")
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "packages"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [parser_of("0.33.0") / "bin" / "python", SCRIPT, folder / "model"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    rows = [json.loads(line.removeprefix("TOLD ")) for line in lines]
    return {row["name"]: row for row in rows}


def test_vllm_itself_refuses_int4_and_loses_the_routers_bias(
    told: dict[str, dict[str, Any]],
) -> None:
    """Both are what the plugin is there for: it can go when a version does neither."""
    assert "does not support loading from pre-processed weights" in told["vLLM's own"]["refused"]
    lost = told["vLLM's own, with experts"]["lost"]
    assert lost
    assert all("router" in path and "e_score_correction_bias" in path for path in lost)


def test_every_mapped_tensor_is_that_of_an_ordinary_load(told: dict[str, dict[str, Any]]) -> None:
    held = told["ours"]["held"]
    assert held == told["ordinary"]["held"]
    # Packed experts, what attention makes of its weights, and what no module registers.
    for end in ("w13_weight_packed", "w2_weight_scale", "W_UK_T", "router.e_score_correction_bias"):
        assert any(path.endswith(end) for path in held), end


def test_a_tensor_that_the_holder_lacks_ends_the_load(told: dict[str, dict[str, Any]]) -> None:
    assert "w2_weight_scale" in told["a tensor less"]["refused"]


def test_an_engine_takes_our_loader_for_the_format(told: dict[str, dict[str, Any]]) -> None:
    assert told["registered"]["loader"] == "ResidentLoader"
