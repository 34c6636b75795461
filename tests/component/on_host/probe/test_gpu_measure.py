"""GPUs are timed through the driver's library: here a double of it, compiled by the test.

The double's clock is made up, so its figures are exact and no hardware's. They show that the calls
are made and counted rightly; whether a real driver takes them shows on a machine with a GPU.
"""

from __future__ import annotations

import copy
import functools
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import closed_form
import pytest

from kimi_prov.on_host.probe import collect, gpu_measure
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from pathlib import Path

GB, TFLOPS = 1e9, 1e12
# Milliseconds pass as though a GPU read and wrote 3000 GB/s, took 50 GB/s in, and multiplied
# 800 TFLOP/s in bf16, twice as many in fp8.
DRIVER = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static double clock_ms = 0;
int cuInit(unsigned f) { return getenv("DOUBLE_BROKEN") ? 100 : 0; }
int cuGetErrorName(int s, const char **t) { *t = "CUDA_ERROR_OF_A_DOUBLE"; return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDeviceGetAttribute(int *v, int which, int d) {
    *v = which == 75 ? atoi(getenv("DOUBLE_MAJOR")) : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(uint64_t *c, int d) { *c = 7 + d; return 0; }
int cuCtxSetCurrent(uint64_t c) { return 0; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = *t = (size_t)80 << 30; return 0; }
int cuStreamCreate(uint64_t *s, unsigned f) { *s = 1; return 0; }
int cuMemAlloc_v2(uint64_t *p, size_t n) { *p = 1 << 20; return n > (1u << 30) ? 2 : 0; }
int cuMemHostAlloc(uint64_t *p, size_t n, unsigned f) { *p = (uint64_t)malloc(n); return 0; }
int cuMemcpyDtoDAsync_v2(uint64_t a, uint64_t b, size_t n, uint64_t s) {
    clock_ms += 2 * n / 3000e6;
    return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t a, uint64_t b, size_t n, uint64_t s) {
    clock_ms += n / 50e6;
    return 0;
}
int cuMemcpyHtoD_v2(uint64_t a, const void *b, size_t n) { return 0; }
int cuMemcpyDtoD_v2(uint64_t a, uint64_t b, size_t n) { return 0; }
int cuEventCreate(uint64_t *e, unsigned f) { *e = (uint64_t)calloc(1, 8); return 0; }
int cuEventRecord(uint64_t e, uint64_t s) { *(double *)e = clock_ms; return 0; }
int cuStreamSynchronize(uint64_t s) { return 0; }
int cuEventElapsedTime(float *t, uint64_t a, uint64_t b) {
    *t = *(double *)b - *(double *)a;
    return 0;
}
int cuEventDestroy_v2(uint64_t e) { free((void *)e); return 0; }
void double_works(double ms) { clock_ms += ms; }
"""
PRODUCTS = r"""
#include <stdint.h>
#include <stdlib.h>
void double_works(double ms);
static int fast;
int cublasLtCreate(uint64_t *h) { *h = 1; return 0; }
int cublasLtMatmulDescCreate(uint64_t *d, int c, int s) { *d = 2; fast = 0; return c != 68; }
int cublasLtMatmulDescSetAttribute(uint64_t d, int which, const void *v, size_t n) {
    if (which == 25) fast = *(const signed char *)v;
    return 0;
}
int cublasLtMatrixLayoutCreate(uint64_t *l, int type, uint64_t r, uint64_t c, int64_t ld) {
    *l = type;
    return r != 8192 || c != 8192 || ld != 8192;
}
int cublasLtMatmulPreferenceCreate(uint64_t *p) { *p = 3; return 0; }
int cublasLtMatmulPreferenceSetAttribute(uint64_t p, int which, const void *v, size_t n) {
    return which != 1;
}
int cublasLtMatmulAlgoGetHeuristic(uint64_t h, uint64_t d, uint64_t a, uint64_t b, uint64_t c,
        uint64_t r, uint64_t p, int wanted, void *found, int *count) {
    *count = 1;
    return 0;
}
int cublasLtMatmul(uint64_t h, uint64_t d, const float *one, uint64_t a, uint64_t al, uint64_t b,
        uint64_t bl, const float *no, uint64_t c, uint64_t cl, uint64_t r, uint64_t rl,
        const void *algorithm, uint64_t w, size_t ws, uint64_t s) {
    if (getenv("DOUBLE_CRASHES")) abort();
    if (al != (fast ? 28 : 14) || cl != 14 || *one != 1 || *no != 0) return 7;
    double_works(2.0 * 8192 * 8192 * 8192 / (fast ? 1600e9 : 800e9));
    return 0;
}
"""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


@pytest.fixture(scope="module")
def doubles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doubles")
    (folder / "driver.c").write_text(DRIVER)
    (folder / "products.c").write_text(PRODUCTS)
    made: tuple[tuple[str, ...], ...] = (
        ("-o", "libcuda.so.1", "driver.c"),
        ("-o", "libcublasLt.so.13", "products.c", "-l:libcuda.so.1", "-L."),
    )
    for words in made:
        argv = ["cc", "-w", "-shared", "-fPIC", *words]
        subprocess.run(argv, cwd=folder, check=True)
    return folder


class Doubled(Machine):
    """A machine whose tools know of the doubles: nvidia-smi of idle GPUs, the loader's cache."""

    def __init__(self, folder: Path, used_mib: int = 4, apps: str = "") -> None:
        super().__init__()
        self._answers = {
            "memory": "".join(f"GPU-{place}, {used_mib}\n" for place in range(8)),
            "apps": apps,
            "ldconfig": f"\tlibcublasLt.so.13 (libc6,x86-64) => {folder}/libcublasLt.so.13\n",
        }

    def run(self, argv: Any, timeout_s: float = 10.0) -> str | None:
        known = {words[1]: name for name, words in gpu_measure._QUERIES.items()}
        return self._answers.get(known.get(argv[1], argv[0]))


@pytest.fixture
def driver(doubles: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(doubles))
    monkeypatch.setenv("DOUBLE_MAJOR", "9")
    monkeypatch.setattr(gpu_measure, "_is_trusted", lambda path: path.startswith(str(doubles)))
    return doubles


@functools.cache
def _collected() -> dict[str, Any]:
    return collect.collect(Machine())


def facts(count: int) -> dict[str, Any]:
    """This machine's facts, with GPUs of the double."""
    document = copy.deepcopy(_collected())
    document["memory"]["available_bytes"] = 64 << 30
    document["gpus"] = [gpu(place) for place in range(count)]
    return document


def gpu(place: int = 0, **more: Any) -> dict[str, Any]:
    size = 80 << 30
    return {
        "index": place,
        "vendor": "nvidia",
        "model": "double of a GPU",
        "memory_total_bytes": size,
        "memory_bytes": size,
        "uuid": f"GPU-{place}",
        "mig": False,
        **more,
    }


def test_each_gpu_is_timed_alone_and_all_at_once(driver: Path) -> None:
    document = facts(2)
    rows = gpu_measure.measure(Doubled(driver), document)
    for row in rows:
        assert row["memory"]["bytes_per_s"] == pytest.approx(3000 * GB, rel=1e-3)
        assert row["copy"]["bytes_per_s"] == pytest.approx(50 * GB, rel=1e-3)
        assert row["bf16"]["flops_per_s"] == pytest.approx(800 * TFLOPS, rel=1e-3)
        assert row["fp8"]["flops_per_s"] == pytest.approx(1600 * TFLOPS, rel=1e-3)
        assert row["bf16"]["by"] == f"{driver}/libcublasLt.so.13"
        # The double has one clock for both: a copy to one GPU waits for the other's.
        assert row["copy_together"]["bytes_per_s"] == pytest.approx(50 * GB, rel=1e-3)
    gpu_measure.apply(document, rows)
    assert document["gpus"][1]["measured"]["copy_bytes_per_s"] == rows[1]["copy"]["bytes_per_s"]
    document["measured"] = {"gpus": rows}
    closed_form.validate(document, "facts")


def test_a_crash_takes_only_what_was_not_measured_yet(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBLE_CRASHES", "1")
    row = gpu_measure.measure(Doubled(driver), facts(1))[0]
    assert row["memory"]["bytes_per_s"]
    assert row["copy"]["bytes_per_s"]
    assert row["bf16"]["flops_per_s"] is None
    assert "signal 6" in row["bf16"]["reason"]
    assert "signal 6" in row["fp8"]["reason"]


def test_what_the_units_or_the_machine_lack_has_its_reason(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBLE_MAJOR", "8")
    monkeypatch.setattr(gpu_measure, "list_cublas", lambda machine: [])
    row = gpu_measure.measure(Doubled(driver), facts(1))[0]
    assert row["memory"]["bytes_per_s"]
    assert "libcublasLt" in row["bf16"]["reason"]
    assert "no fp8" in row["fp8"]["reason"]
    assert "one GPU" in row["copy_together"]["reason"]


def test_a_driver_that_refuses_is_named_with_its_own_word(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBLE_BROKEN", "1")
    document = facts(1)
    rows = gpu_measure.measure(Doubled(driver), document)
    assert rows[0]["memory"]["reason"] == "cuInit: CUDA_ERROR_OF_A_DOUBLE"
    assert rows[0]["fp8"]["reason"] == "cuInit: CUDA_ERROR_OF_A_DOUBLE"
    gpu_measure.apply(document, rows)
    assert "measured" not in document["gpus"][0]


def test_a_gpu_that_serves_is_never_touched(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(gpu_measure, "_run_child", lambda *words: started.append(words))
    row = gpu_measure.measure(Doubled(driver, apps="GPU-0\n"), facts(1))[0]
    assert row["memory"] == {
        "bytes_per_s": None,
        "seconds": None,
        "reason": "busy: a process computes on it",
    }
    assert started == []


@pytest.mark.parametrize(
    ("card", "used", "free", "reason"),
    [
        (gpu(), 600 << 20, 64 << 30, None),
        (gpu(), 600 << 20, None, None),
        (gpu(vendor="amd"), 0, 64 << 30, "only NVIDIA"),
        (gpu(mig=True), 0, 64 << 30, "MIG"),
        (gpu(), None, 64 << 30, "not known"),
        (gpu(), 70 << 30, 64 << 30, "busy: 70.0 GiB"),
        (gpu(memory_bytes=2 << 30), 1 << 29, 64 << 30, "only 1.5 GiB of its"),
        (gpu(), 0, 512 << 20, "512.0 MiB of the machine's"),
    ],
)
def test_only_an_idle_gpu_is_measured(
    card: dict[str, Any], used: int | None, free: int | None, reason: str | None
) -> None:
    found = gpu_measure.find_refusal(card, used, serving=False, free=free)
    assert found is None if reason is None else reason in str(found)


def test_a_library_that_others_may_write_is_not_loaded(tmp_path: Path) -> None:
    library = tmp_path / "libcublasLt.so.13"
    library.write_bytes(b"")
    library.chmod(0o644)
    assert gpu_measure._is_trusted(os.path.realpath(library))
    library.chmod(0o666)
    assert not gpu_measure._is_trusted(os.path.realpath(library))
    library.chmod(0o644)
    tmp_path.chmod(0o777)
    assert not gpu_measure._is_trusted(os.path.realpath(library))
