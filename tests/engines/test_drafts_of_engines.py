"""Which drafts a pinned version of vLLM decodes with, by its own code.

A draft that the catalogue says a version loads needs the version's method, and the class that reads
the draft's checkpoint. One that it does not know is refused before its weights are fetched.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.engine import speculative

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kimi_prov.catalog.models import Draft

pytestmark = pytest.mark.slow

CATALOGUE = load_catalogue()
# The class of a draft's checkpoint, by the end of its name in the catalogue.
CLASSES = {
    "eagle3-mla": "Eagle3DeepseekV2ForCausalLM",
    "eagle3.1-mla": "Eagle3DeepseekV2ForCausalLM",
    "thinking-eagle3": "Eagle3LlamaForCausalLM",
    "dflash": "DFlashDraftModel",
    "k2.6-dspark": "Qwen3DSparkModel",
    "k3-dspark": "K3DSparkModel",
    "speculator.dspark": "Qwen3DSparkModel",
}
ASK = """
import inspect, json
from typing import get_args
from vllm.config.speculative import SpeculativeMethod
from vllm.model_executor.models import deepseek_eagle3
from vllm.model_executor.models.registry import ModelRegistry

def flatten(kind):
    inner = get_args(kind)
    return [kind] if not inner else [name for part in inner for name in flatten(part)]

print(json.dumps({
    "methods": flatten(SpeculativeMethod),
    "classes": sorted(ModelRegistry.get_supported_archs()),
    "norm": "norm_output" in inspect.getsource(deepseek_eagle3),
}))
"""


@pytest.fixture(scope="module", params=["0.19.1", "0.25.1", "0.32.0"])
def known(request: pytest.FixtureRequest, parser_of: Callable[[str], Path]) -> dict[str, object]:
    python = parser_of(request.param) / "bin" / "python"
    done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True)
    return {"version": request.param} | dict(json.loads(done.stdout.splitlines()[-1]))


def reads(draft: Draft, known: dict[str, object]) -> bool:
    """Whether this version's own code has what the draft needs."""
    [kind] = [name for end, name in CLASSES.items() if draft.name.endswith(end)] or [""]
    norm = known["norm"] or "eagle3.1" not in draft.name
    return draft.method in known["methods"] and kind in known["classes"] and bool(norm)  # type: ignore[operator]


def test_the_catalogue_says_what_a_version_loads(known: dict[str, object]) -> None:
    engine = CATALOGUE.engine("vllm", "cuda", str(known["version"]))
    assert engine is not None
    for draft in CATALOGUE.drafts:
        if speculative.can_load(draft, engine):
            assert reads(draft, known), f"{draft.name} by {known['version']}"
        # A version older than the first that loads it lacks something; the layers of the large
        # model count too (Kimi K3 came with 0.27), which no list names.
        elif draft.least is not None and "k3" not in draft.name and "eagle3-mla" not in draft.name:
            assert not reads(draft, known), f"{draft.name} by {known['version']}"
