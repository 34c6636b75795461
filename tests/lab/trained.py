"""A tiny model of Kimi K2.5's form, trained here on the questions of the acceptance suite."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import engine_environment
import suite_lessons

from kimi_prov.lab import model, model_shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAINER = Path(__file__).parent / "training" / "train.py"
# The version of vLLM whose environment has torch, and whose CPU build serves the model.
ENGINE = "0.32.0"
VALUES = "trained.safetensors"
# Of processor time on one core it takes five minutes; a computer with much else to do takes longer.
LIMIT_S = 3600
# Answers of a model that is whole in form and wrong in what it says.
WRONG = ("ignorant", "dull", "wrong-form", "marks-in-instant", "mixes", "wrong-code", "forgets")


def train(folder: Path, *faults: str, after: Path | None = None) -> Path:
    """Train a model in `folder`, which begins as the one in `after`; return its own folder.

    `faults`: those of the scripted model whose answers it learns.
    """
    random = model.make_model(folder / "random", "bf16", model_shapes.SEEING)
    lessons = suite_lessons.lessons(model_shapes.SEEING.context, *faults)
    file = folder / "lessons.json"
    file.write_text(json.dumps([lesson.document() for lesson in lessons]))
    python = engine_environment.environment(ENGINE) / "bin" / "python"
    words = [python, TRAINER, random, file, folder / VALUES, "--limit", str(LIMIT_S)]
    words += ["--from", after.parent / VALUES] if after else []
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return model.make_model(
        folder / "model", "bf16", model_shapes.SEEING, dict(values(folder / VALUES))
    )


def values(file: Path) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each tensor of a safetensors file."""
    raw = file.read_bytes()
    for name, (begin, end) in places(raw).items():
        yield name, raw[begin:end]


def places(raw: bytes) -> dict[str, tuple[int, int]]:
    """Where each tensor of a safetensors file begins and ends."""
    length = int.from_bytes(raw[:8], "little")
    rows = json.loads(raw[8 : 8 + length])
    rows.pop("__metadata__", None)
    return {
        name: (8 + length + row["data_offsets"][0], 8 + length + row["data_offsets"][1])
        for name, row in rows.items()
    }
