"""A decode step in one call of the plugin's own kernel: whole layers beside plain Python."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kimi_kt_experts import build, step
from kimi_kt_experts.kernel import Library
from kimi_kt_experts.numbers import distance
from kimi_kt_experts.prove import ALLOWED
from kimi_kt_experts.prove_step import StepCase

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
MODEL = Path(__file__).parent / "data" / "tiles_model.h"
ALONE, TILES = 99, 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with a model of AMX's tiles."""
    into = tmp_path_factory.mktemp("kernel") / "experts.so"
    more = {"amx": ("-include", str(MODEL)), "main": ("-DMODEL_OF_TILES",)}
    return build.build(into, more=more)


@pytest.fixture(params=["avx2", "avx512", "amx"])
def built(path: Path, request: pytest.FixtureRequest) -> Library:
    kernel = Library(path)
    try:
        kernel.choose(request.param)
    except SystemExit:
        pytest.skip(f"this processor has not what the build {request.param} needs")
    return kernel


@functools.cache
def _compute(case: StepCase) -> list[float]:
    return case.right()


@pytest.mark.parametrize("crossover", [ALONE, TILES])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(StepCase((1,)), id="the first token"),
        pytest.param(StepCase((9, 1, 70)), id="requests of three lengths"),
        pytest.param(StepCase((200,), heads=10, value=32), id="two groups of heads"),
        pytest.param(
            StepCase((1500,), heads=1, value=128, nope=16), id="more positions than parts"
        ),
        pytest.param(
            StepCase((3, 17), hidden=192, q_rank=128, kv_rank=144, widths=(64, 320), top_k=8),
            id="groups and registers that are not full",
        ),
        pytest.param(StepCase(tuple(range(1, 38)), top_k=1), id="more tokens than a tile has"),
    ],
)
def test_two_layers_are_what_plain_arithmetic_gives(
    built: Library, case: StepCase, crossover: int
) -> None:
    found, wanted = case.by(built, crossover), _compute(case)
    size = case.hidden * len(case.lengths)
    for part in (slice(size), slice(size, 2 * size), slice(2 * size, None)):
        assert distance(found[part], wanted[part]) < ALLOWED


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays_with_its_request(built: Library, value: float) -> None:
    case = StepCase((9, 5, 70, 2))
    clean = case.by(built, ALONE)
    case.x[1][7] = value
    found = case.by(built, ALONE)
    rows = {"hidden": case.hidden, "residual": case.hidden, "cache": case.kv_rank + case.rope}
    at = 0
    for size in (rows["hidden"], rows["residual"], rows["cache"], rows["cache"]):
        for token in range(4):
            mine, before = (
                values[at + token * size : at + token * size + size] for values in (found, clean)
            )
            assert (mine == before) is (token != 1)
            if token == 1 and size == case.hidden and at == 0:
                assert all(math.isnan(number) for number in mine)
        at += 4 * size


def test_a_request_s_answer_does_not_depend_on_the_others(built: Library) -> None:
    together = StepCase((9, 5, 70))
    found = together.by(built, ALONE)
    alone = StepCase((9, 5, 70))
    for name in ("lengths", "tables", "x"):
        setattr(alone, name, getattr(together, name)[2:])
    alone.lengths = tuple(alone.lengths)
    assert (
        alone.by(built, ALONE)[: together.hidden]
        == found[2 * together.hidden : 3 * together.hidden]
    )


_AGAIN = """
import sys
from pathlib import Path
from kimi_kt_experts.kernel import Library
from kimi_kt_experts.prove_step import StepCase
kernel = Library(Path(sys.argv[1]))
print(kernel.threads(), [StepCase((9, 5, 70)).by(kernel, 99) for _ in range(3)])
"""


def _run(path: Path, threads: int, cpus: set[int]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _AGAIN, str(path)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_any_number_of_threads_gives_the_same_bits_and_none_waits_for_ever(path: Path) -> None:
    """Nine threads that have one core between them: most of them are away at any time."""
    first, *_ = sorted(os.sched_getaffinity(0))
    alone, many = (_run(path, threads, {first}) for threads in (1, 9))
    assert many.replace("9 [", "1 [", 1) == alone


def test_python_and_c_mean_the_same_fields() -> None:
    """In the same order: an address, or a number of the same size."""
    text = (build.SOURCES / "step.h").read_text()
    for name, fields in (("layer", step.LayerFields), ("step", step.StepFields)):
        body = re.search(rf"^struct {name} \{{(.*?)^\}};", text, re.DOTALL | re.MULTILINE)
        assert body is not None
        rows = [
            (word.strip("* "), "*" in word or "*" in kind, kind)
            for line in re.findall(r"^    ([^/]*?);", body[1], re.MULTILINE)
            for kind, words in [
                re.match(r"((?:const )?(?:struct )?\w+) (.*)", line, re.DOTALL).groups()
            ]  # type: ignore[union-attr]
            for word in words.split(",")
        ]
        kinds = {"int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "float": ctypes.c_float}
        assert [
            (word, ctypes.c_void_p if pointer else kinds[kind]) for word, pointer, kind in rows
        ] == list(fields._fields_)


def test_sizes_that_the_kernel_is_not_made_for_are_named() -> None:
    good = {"kv_rank": 512, "rope": 64, "experts": 384}
    assert step.find_gap(good) == ""
    assert "520" in step.find_gap({**good, "kv_rank": 520})
    assert "30" in step.find_gap({**good, "rope": 30})
    assert "8 experts" in step.find_gap({**good, "experts": 8})
    assert "2048 experts" in step.find_gap({**good, "experts": 2048})
