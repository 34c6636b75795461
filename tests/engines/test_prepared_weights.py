"""Prepared weights by vLLM's CPU build: a rank holds what it holds after an ordinary load."""

from __future__ import annotations

import io
import json
import os
import re
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
PLUGIN = Path(engine_plugins.__file__).parents[1] / "engine_plugins" / "prepared"
SCRIPT = Path(__file__).parent / "in_prepared" / "load_often.py"
_LINE = re.compile(r"\[loader\.py:\d+\] (.*)")


@pytest.fixture(scope="module")
def loads(
    parser_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What each load held and said, by its name."""
    folder = tmp_path_factory.mktemp("prepared")
    model.make_model(folder / "model", "bf16")
    _, wheel = engine_plugins.make_wheel("prepared")
    zipfile.ZipFile(io.BytesIO(wheel)).extractall(folder / "packages")
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "packages"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    python = parser_of("0.32.0") / "bin" / "python"
    done = subprocess.run(
        [python, SCRIPT, folder / "model", folder / "kept"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    told: dict[str, dict[str, Any]] = {}
    said: list[str] = []
    for line in done.stdout.splitlines():
        if line.startswith("TOLD "):
            row = json.loads(line.removeprefix("TOLD "))
            told[row["name"]] = row | {"log": "\n".join(said)}
            said = []
        elif match := _LINE.search(line):
            said.append(match[1])
    return told


@pytest.mark.parametrize(
    "name", ["first", "second", "flipped", "truncated", "another manifest", "engine, prepared"]
)
def test_every_tensor_is_that_of_an_ordinary_load(
    loads: dict[str, dict[str, Any]], name: str
) -> None:
    held = loads[name]["held"]
    assert held == loads["ordinary"]["held"]
    # What attention makes of its weights is no parameter of the checkpoint, and counts too.
    assert any(path.endswith("W_UK_T") for path in held)


def test_an_engine_answers_as_after_an_ordinary_load(loads: dict[str, dict[str, Any]]) -> None:
    assert loads["engine, prepared"]["answers"] == loads["engine, ordinary"]["answers"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("first", "Prepared weights written"),
        ("second", "every sum as written"),
        ("flipped", "put aside: .* has another sum"),
        ("truncated", "put aside: .* its first page says"),
        ("another manifest", "There are no prepared weights for this rank yet"),
        ("engine, prepared", "every sum as written"),
    ],
)
def test_the_log_says_which_way_was_taken(
    loads: dict[str, dict[str, Any]], name: str, said: str
) -> None:
    assert re.search(said, loads[name]["log"]), loads[name]["log"]


def test_a_damaged_file_is_put_aside_and_another_key_has_a_file_of_its_own(
    loads: dict[str, dict[str, Any]],
) -> None:
    files = loads["files"]["files"]
    assert sum(name.endswith(".prepared") for name in files) == 2
    assert loads["second"]["file"] in files
    assert [name for name in files if name.endswith(".damaged")] == [
        loads["second"]["file"] + ".damaged"
    ]
    assert not any(name.endswith(".partial") for name in files)


def test_a_file_holds_every_tensor_once_and_each_changed_byte_is_noticed(
    parser_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """By torch alone, without an engine: tied weights, views, plain attributes, a writer killed."""
    python = parser_of("0.32.0") / "bin" / "python"
    script = SCRIPT.with_name("copy_often.py")
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN)}
    done = subprocess.run(
        [python, script, tmp_path], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["differ before"]
    assert (told["filled"], told["same after"], told["tied after"]) == ("", True, True)
    assert told["another model"] == "other tensors"
    assert {"first.weight", "first.table", "first.absorbed", "first.parts[1]['scale']"} <= {
        *told["paths"]
    }
    # Of two layers with five storages each, one packed weight is tied; and the large one.
    assert told["storages"] == 2 * 6 - 1 + 1
    assert told["changed bytes"] == told["noticed"] > 20
    assert told["killed"] == [".partial", ".prepared"]
    assert told["removed"] == 1
