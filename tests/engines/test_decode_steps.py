"""Decode steps in one call of the plugin's kernel, in the real vLLM, beside vLLM's own layers."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from kimi_kt_experts import build

from kimi_prov.lab import model, model_shapes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

# The second token of each answer comes of a decode step; the first is the prompt's.
ASK = """
import json, os, sys
from vllm import LLM, SamplingParams
engine = LLM(sys.argv[1], enforce_eager=True, dtype="bfloat16", max_model_len=512,
             max_num_seqs=64, enable_prefix_caching=False, disable_log_stats=True)
prompts = [{"prompt_token_ids": [(s * s * 17 + i * i * 31 * s + i * 7) % 1500 + 20
                                 for i in range(5 + 3 * s)]} for s in range(1, 33)]
asked = SamplingParams(max_tokens=2, ignore_eos=True, temperature=0, logprobs=5)
answers = [one.outputs[0] for one in engine.generate(prompts, asked, use_tqdm=False)]
print("ANSWERS " + json.dumps([[a.token_ids[0], {k: v.logprob for k, v in a.logprobs[1].items()}]
                               for a in answers]), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def answer(
    parser_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[list[Any], str]]:
    """Answer 32 prompts with a tiny model that turns positions as Kimi does."""
    folder = tmp_path_factory.mktemp("steps")
    package = folder / "site" / "kimi_kt_experts"
    away = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(build.SOURCES.parent, package, ignore=away)
    build.build(package / "native" / "experts.so")
    about = folder / "site" / "kimi_kt_experts-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: kimi-kt-experts\nVersion: 0\n")
    (about / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nkimi_kt_experts = kimi_kt_experts:register\n"
    )
    tiny = replace(model_shapes.TINY, experts=16, yarn=True)
    shapes = {"tiny": tiny, "plain": replace(tiny, yarn=False)}

    def answered(name: str = "tiny", **settings: str) -> tuple[list[Any], str]:
        if not (folder / name).exists():
            model.make_model(folder / name, "int4", shapes[name])
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        done = subprocess.run(
            [str(parser_of("0.32.0") / "bin" / "python"), "-c", ASK, str(folder / name)],
            env=os.environ
            | {
                "PYTHONPATH": str(folder / "site"),
                "VLLM_PLUGINS": "kimi_kt_experts",
                "VLLM_CPU_OMP_THREADS_BIND": cores,
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_HOST_IP": "127.0.0.1",
                "TORCHDYNAMO_DISABLE": "1",
                "HF_HUB_OFFLINE": "1",
                **settings,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        rows = [row[8:] for row in done.stdout.splitlines() if row.startswith("ANSWERS ")]
        assert rows, said[-4000:]
        return json.loads(rows[0]), said

    return answered


def test_answers_are_those_of_vllm_s_own_layers(answer: Callable[..., Any]) -> None:
    """Most of them to the bit; int8 weights alone differ from bf16 by 0.07 in the mean."""
    own, said = answer(KIMI_DENSE="int8")
    assert "decode steps: 3 layers in one call of the own kernel, for up to 64 requests" in said
    layers, said = answer(KIMI_DENSE="int8", KIMI_STEP="vllm")
    assert "decode steps" not in said
    off = [
        abs(mine[token] - theirs[token])
        for (first, mine), (other, theirs) in zip(own, layers, strict=True)
        if first == other
        for token in mine.keys() & theirs.keys()
    ]
    assert len(off) > 4 * 30
    assert statistics.median(off) < 1e-4
    assert statistics.mean(off) < 0.03


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("tiny", {}, "dense weights of layer 0 are not in int8"),
        ("plain", {"KIMI_DENSE": "int8"}, "positions are turned by RotaryEmbedding"),
    ],
)
def test_where_it_does_not_run_a_line_says_why(
    answer: Callable[..., Any], name: str, settings: dict[str, str], reason: str
) -> None:
    answers, said = answer(name, **settings)
    assert f"decode steps: layer by layer in vLLM, because {reason}" in said
    assert len(answers) == 32
