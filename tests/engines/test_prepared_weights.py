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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and the plugin as it is installed."""
    folder = tmp_path_factory.mktemp("prepared")
    model.make_model(folder / "model", "bf16")
    _, wheel = engine_plugins.make_wheel("prepared")
    zipfile.ZipFile(io.BytesIO(wheel)).extractall(folder / "packages")
    return folder


@pytest.fixture(scope="module")
def loads(parser_of: Callable[[str], Path], folder: Path) -> dict[str, dict[str, Any]]:
    """What each load held and said, by its name."""
    told: dict[str, dict[str, Any]] = {}
    said: list[str] = []
    kept = folder / "kept"
    for line in run(parser_of, [str(SCRIPT)], folder, kept):
        if line.startswith("TOLD "):
            row = json.loads(line.removeprefix("TOLD "))
            told[row["name"]] = row | {"log": "\n".join(said)}
            said = []
        elif match := _LINE.search(line):
            said.append(match[1])
    return told


def run(
    parser_of: Callable[[str], Path], command: list[str], folder: Path, kept: Path, *before: str
) -> list[str]:
    """Run a script of this folder by an engine's python; returns the lines that it wrote."""
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
        [*before, python, *command, folder / "model", kept],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "name",
    [
        *("first", "second", "flipped", "truncated", "another manifest"),
        *("engine, prepared", "engine, of other sizes"),
    ],
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


def test_an_engine_for_other_requests_and_threads_copies_the_same_files(
    loads: dict[str, dict[str, Any]],
) -> None:
    one, other = loads["engine, prepared"], loads["engine, of other sizes"]
    assert other["sums"] == one["sums"] != {}
    assert "Prepared weights written" not in other["log"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("first", "Prepared weights written"),
        ("second", "every sum as written"),
        ("flipped", "put aside: .* has another sum"),
        ("truncated", "put aside: .* its first page says"),
        ("another manifest", "There are no prepared weights for this rank yet"),
        ("engine, prepared", "every sum as written"),
        ("engine, of other sizes", "every sum as written"),
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


@pytest.fixture(scope="module")
def ranks(parser_of: Callable[[str], Path], folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What two ranks that load at once held and said, by the name of the load and the rank."""
    kept = folder / "of two"
    kept.mkdir()
    own = ("unshare", "--user", "--map-root-user", "--mount")
    script = SCRIPT.with_name("race.py")
    lines = run(parser_of, [str(script)], folder, kept, *own)
    rows = [json.loads(line.removeprefix("TOLD ")) for line in lines if line.startswith("TOLD ")]
    return {(row["name"], row["rank"]): row for row in rows}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        ("with room for one", 0, "GB free, 2 ranks together need"),
        ("written", 2, "Prepared weights written"),
        ("copied", 2, "every sum as written"),
        ("half", 2, "There are no prepared weights for"),
        ("damaged", 2, "put aside|those of another rank are damaged"),
        ("copied again", 2, "every sum as written"),
    ],
)
def test_ranks_write_together_and_copy_together_or_not_at_all(
    ranks: dict[tuple[str, int], dict[str, Any]], rank: int, name: str, files: int, said: str
) -> None:
    row = ranks[name, rank]
    assert row["held"] == ranks["ordinary", rank]["held"]
    assert re.search(said, "\n".join(row["said"])), row["said"]
    kept = [one for one in row["files"] if one.endswith(".prepared")]
    assert len(kept) == files
    assert not [one for one in row["files"] if one.endswith(".partial")]
    if "every sum" not in said:
        copied = [one for one in row["said"] if "every sum as written" in one]
        # Of a set with a damaged file the other one is copied before that is known.
        assert not copied or (name, rank) == ("damaged", 0)


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
