"""The plugin's own kernel: compiled as on a managed machine, beside plain Python arithmetic.

AMX's tiles are computed by a model of them in C (data/tiles_model.h), so that the code around them
is run on any processor; on one with AMX `python -m kimi_kt_experts.build` proves the real ones.
"""

from __future__ import annotations

import math
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kimi_kt_experts import build
from kimi_kt_experts.kernel import Dense, Library, takes_dense
from kimi_kt_experts.numbers import distance, half
from kimi_kt_experts.prove import ALLOWED, Case, DenseCase

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
MODEL = Path(__file__).parent / "data" / "tiles_model.h"
ALONE, TILES = 99, 1


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The library with a model of AMX's tiles."""
    into = tmp_path_factory.mktemp("kernel") / "experts.so"
    more = {"amx": ("-include", str(MODEL)), "main": ("-DMODEL_OF_TILES",)}
    return Library(build.build(into, more=more))


@pytest.fixture(params=["avx2", "avx512", "amx"])
def built(kernel: Library, request: pytest.FixtureRequest) -> Library:
    try:
        kernel.choose(request.param)
    except SystemExit:
        pytest.skip(f"this processor has not what the build {request.param} needs")
    return kernel


@pytest.mark.parametrize("crossover", [ALONE, TILES])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(2, 32, 32, 1, 1), id="the smallest"),
        pytest.param(Case(4, 96, 32, 3, 2), id="odd groups"),
        pytest.param(Case(3, 160, 96, 19, 1), id="five groups, two tiles"),
        pytest.param(Case(2, 224, 64, 5, 2), id="seven groups"),
        pytest.param(Case(5, 64, 32, 150, 1, ids=[[3]] * 150), id="one expert for all"),
        pytest.param(Case(4, 64, 32, 6, 2, ids=[[0, -1], [-1, -1]] * 3), id="no expert"),
    ],
)
def test_a_layer_is_what_plain_arithmetic_gives(built: Library, case: Case, crossover: int) -> None:
    wanted = case.right()
    assert distance(case.by(built, crossover), wanted) < ALLOWED


def test_slices_of_the_experts_add_up(built: Library) -> None:
    case = Case(3, 64, 128, 7, 2)
    wanted = case.right()
    for parts in (2, 4):
        assert distance(case.by(built, TILES, parts), wanted) < ALLOWED


def test_vnni_and_tiles_give_the_same(kernel: Library) -> None:
    """So the number of tokens that meet an expert changes an answer by rounding alone."""
    try:
        kernel.choose("amx")
    except SystemExit:
        pytest.skip("this processor has no AVX512-VNNI")
    case = Case(2, 96, 64, 33, 1)
    assert distance(case.by(kernel, ALONE), case.by(kernel, TILES)) < 0.004


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("crossover", [ALONE, TILES])
def test_what_is_no_number_stays_with_its_token(
    built: Library, value: float, crossover: int
) -> None:
    case = Case(2, 64, 32, 6, 1)
    clean = case.by(built, crossover)
    bits = 0x7FC0 if math.isnan(value) else half(value)
    case.x[64 * 3 + 5] = bits
    found = case.by(built, crossover)
    for token in range(6):
        mine = found[64 * token : 64 * token + 64]
        if token == 3:
            assert all(math.isnan(number) for number in mine)
        else:
            assert mine == clean[64 * token : 64 * token + 64]


def test_weights_that_are_all_zero_and_tokens_that_are_give_zero(built: Library) -> None:
    case = Case(2, 64, 32, 6, 1)
    case.x[64 * 2 : 64 * 3] = type(case.x)("H", bytes(128))
    assert case.by(built, TILES)[64 * 2 : 64 * 3] == [0.0] * 64
    for row in case.scales:
        row[:] = type(row)("H", bytes(2 * len(row)))
    assert set(case.by(built, TILES)) == {0.0}


def test_any_routing_and_again_the_same_to_the_bit(built: Library) -> None:
    draw = random.Random(7)  # noqa: S311 - no secret
    for tokens in (2, 9, 40):
        rows = [draw.sample(range(-2, 6), 3) for _ in range(tokens)]
        case = Case(6, 64, 32, tokens, 3, ids=rows, seed=tokens)
        first = case.by(built, 5)
        assert distance(first, case.right()) < ALLOWED
        assert case.by(built, 5) == first


def test_a_layer_takes_what_the_checkpoint_takes(kernel: Library) -> None:
    weights = 384 * 3 * 7168 * 2048
    assert kernel.bytes(384, 7168, 2048) == weights * 9 // 16


@pytest.mark.parametrize("crossover", [ALONE, TILES])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(DenseCase(16, 64, 1), id="the smallest"),
        pytest.param(DenseCase(48, 192, 3), id="a group and a half, three blocks"),
        pytest.param(DenseCase(32, 256, 16), id="one tile of tokens"),
        pytest.param(DenseCase(80, 448, 53), id="tiles of tokens and blocks left over"),
        pytest.param(DenseCase(272, 128, 33), id="many blocks"),
    ],
)
def test_a_dense_matrix_is_what_plain_arithmetic_gives(
    built: Library, case: DenseCase, crossover: int
) -> None:
    assert distance(case.by(built, crossover), case.right()) < ALLOWED


def test_dense_by_vnni_and_by_tiles_are_the_same_to_the_bit(kernel: Library) -> None:
    """A token's values do not depend on how many others there are."""
    try:
        kernel.choose("amx")
    except SystemExit:
        pytest.skip("this processor has no AVX512-VNNI")
    case = DenseCase(48, 320, 21)
    found = case.by(kernel, ALONE)
    assert case.by(kernel, TILES) == found
    kernel.choose("avx2")
    assert case.by(kernel, ALONE) == found


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("crossover", [ALONE, TILES])
def test_dense_keeps_what_is_no_number_with_its_token(
    built: Library, value: float, crossover: int
) -> None:
    case = DenseCase(32, 192, 5)
    clean = case.by(built, crossover)
    case.x[192 * 3 + 150] = 0x7FC0 if math.isnan(value) else half(value)
    found = case.by(built, crossover)
    for token in range(5):
        mine = found[32 * token : 32 * token + 32]
        if token == 3:
            assert all(math.isnan(number) for number in mine)
        else:
            assert mine == clean[32 * token : 32 * token + 32]


def test_dense_zeros_give_zero(built: Library) -> None:
    case = DenseCase(16, 128, 2)
    case.x[:128] = type(case.x)("H", bytes(256))
    assert case.by(built, TILES)[:16] == [0.0] * 16
    case.weights[:] = type(case.weights)("H", bytes(2 * 16 * 128))
    assert set(case.by(built, TILES)) == {0.0}


def test_a_dense_matrix_takes_a_little_more_than_a_byte_a_weight(kernel: Library) -> None:
    assert kernel.dense_bytes(2112, 7168) == 2112 * 7168 * 33 // 32
    held = DenseCase(16, 64, 1)
    assert Dense(kernel, held.weights.buffer_info()[0], 16, 64).size == 16 * 64 + 64
    assert takes_dense(2112, 7168)
    assert not any(takes_dense(*size) for size in ((8, 64), (24, 64), (16, 96), (0, 64)))


def test_a_kernel_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"run `python -m kimi_kt_experts.build`.*KIMI_EXPERTS=kt"):
        Library(tmp_path / "none.so")


def test_the_build_says_what_the_compiler_said(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match="install gcc and libc6-dev"):
        build.build(tmp_path / "x.so", compiler="/nowhere/gcc")
    # What is whole is only read: it is compiled by the other tests.
    more = dict.fromkeys(build.BUILDS, ("-fsyntax-only",))
    with pytest.raises(build.BuildError, match="failed"):
        build.build(tmp_path / "x.so", more={**more, "main": ("-DGROUP=",)})
    assert list(tmp_path.iterdir()) == []


def test_what_is_installed_is_compiled_and_proven(tmp_path: Path) -> None:
    """The commands that `apply` runs, on the plugin as a wheel brings it."""
    package = tmp_path / "kimi_kt_experts"
    shutil.copytree(
        build.SOURCES.parent, package, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for command in (
        ("-I", package / "build.py", "--unproven"),
        ("-m", "kimi_kt_experts.prove"),
        ("-m", "kimi_kt_experts.build"),
    ):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert ("avx2: off by 0.0" in done.stdout) is ("--unproven" not in command)
    assert (package / "native" / "experts.so").exists()
