"""Measures GPUs through the driver's own library; in a process of its own, which may crash.

`probe --measure` starts it for each GPU alone and once for all together. It reads its task as JSON
from standard input and writes a line of JSON for each part that is finished, so that a crash loses
no earlier results. It needs only the driver's libcuda.so.1; the matrix rate also needs NVIDIA's
cuBLASLt, if the machine has a library of it. It uses little memory, and only where it is free.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import statistics
import sys
import time
from typing import Any, Callable

_Call = Callable[[], None]

# Bytes on the GPU: two halves that are copied into each other, or three matrices and a workspace.
# More than twice any GPU's last cache, so that memory is measured.
ARENA = 1 << 30
# Bytes of pinned host memory, for each GPU.
PINNED = 128 << 20
# A matrix with this many rows and columns uses every multiprocessor of today's GPUs.
_SIDE = 8192
_WORKSPACE = 32 << 20
_RANDOM = 2 << 20
# Seconds of each part, after the clocks have risen; split into rounds, of which the median counts.
_WARM_S, _PART_S, _ROUNDS = 0.1, 0.4, 5
_MIN_RUNS = 3
# CUresult and cublasStatus_t for success.
_OK = 0
_PORTABLE = 1
_CAPABILITY = (75, 76)
_BF16_SINCE, _FP8_SINCE = (8, 0), (8, 9)
# Of cuBLASLt: cudaDataType, cublasComputeType_t, attributes of a product and of a preference.
_R_32F, _R_16BF, _R_8F_E4M3 = 0, 14, 28
_COMPUTE_32F = 68
_TRANSA, _TRANSB, _A_SCALE, _B_SCALE, _FAST_ACCUM = 3, 4, 17, 18, 25
_MAX_WORKSPACE = 1
_ALGORITHM_BYTES, _HEURISTIC_BYTES = 64, 96


class Unmeasured(Exception):  # noqa: N818  (no error: a figure that there is not)
    """Why a part has no figure."""


class _Driver:
    """libcuda.so.1: each call is checked, and a failed one named as the driver names it."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unmeasured(f"the driver's libcuda.so.1 cannot be loaded: {error}") from None

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        """Call a function. Raises Unmeasured where the library lacks it or it fails."""
        function = getattr(self._library, name, None)
        if function is None:
            raise Unmeasured(f"the driver has no {name}")
        status = function(*arguments)
        if status != _OK:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            told = (text.value or b"").decode("ascii", "replace") or f"error {status}"
            raise Unmeasured(f"{name}: {told}")

    def number(self, name: str, *arguments: Any) -> int:  # noqa: ANN401
        """Call a function whose first argument is an int."""
        found = ctypes.c_int()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value

    def address(self, name: str, *arguments: Any) -> int:  # noqa: ANN401
        """Call a function whose first argument is a pointer, a handle or 64 bits."""
        found = ctypes.c_uint64()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value


class _Device:
    """A GPU with its context, a stream, and memory there and here."""

    def __init__(self, driver: _Driver, ordinal: int, cpus: list[int]) -> None:
        self.driver = driver
        device = driver.number("cuDeviceGet", ordinal)
        major, minor = (
            driver.number("cuDeviceGetAttribute", which, device) for which in _CAPABILITY
        )
        self.capability = (major, minor)
        self._context = driver.address("cuDevicePrimaryCtxRetain", device)
        self.use()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        if free.value < 2 * ARENA:
            raise Unmeasured(f"only {free.value >> 20} MiB of its memory are free")
        self.stream = ctypes.c_uint64(driver.address("cuStreamCreate", 1))
        self.arena = driver.address("cuMemAlloc_v2", ctypes.c_size_t(ARENA))
        # Pages come from the node of the thread that requests them.
        if cpus:
            os.sched_setaffinity(0, cpus)
        self.pinned = driver.address("cuMemHostAlloc", ctypes.c_size_t(PINNED), _PORTABLE)
        ctypes.memset(self.pinned, 1, PINNED)

    def use(self) -> None:
        """Make the following calls use this GPU."""
        self.driver.call("cuCtxSetCurrent", ctypes.c_uint64(self._context))

    def copy_within(self) -> None:
        """Copy one half of the arena to the other."""
        half = ARENA // 2
        self.driver.call(
            "cuMemcpyDtoDAsync_v2",
            ctypes.c_uint64(self.arena + half),
            ctypes.c_uint64(self.arena),
            ctypes.c_size_t(half),
            self.stream,
        )

    def copy_in(self) -> None:
        """Copy the machine's pinned memory to the GPU."""
        self.driver.call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(self.arena),
            ctypes.c_uint64(self.pinned),
            ctypes.c_size_t(PINNED),
            self.stream,
        )

    def upload(self, offset: int, data: bytes, size: int) -> None:
        """Fill `size` bytes of the arena with `data`, repeated."""
        self.driver.call(
            "cuMemcpyHtoD_v2",
            ctypes.c_uint64(self.arena + offset),
            data,
            ctypes.c_size_t(len(data)),
        )
        done = len(data)
        while done < size:
            part = min(done, size - done)
            self.driver.call(
                "cuMemcpyDtoD_v2",
                ctypes.c_uint64(self.arena + offset + done),
                ctypes.c_uint64(self.arena + offset),
                ctypes.c_size_t(part),
            )
            done += part

    def mark(self) -> ctypes.c_uint64:
        """Put an event into the stream."""
        event = ctypes.c_uint64(self.driver.address("cuEventCreate", 0))
        self.driver.call("cuEventRecord", event, self.stream)
        return event

    def wait(self) -> None:
        """Wait until the stream is empty."""
        self.driver.call("cuStreamSynchronize", self.stream)

    def between(self, first: ctypes.c_uint64, last: ctypes.c_uint64) -> float:
        """Return the seconds between two events that have passed."""
        found = ctypes.c_float()
        self.driver.call("cuEventElapsedTime", ctypes.byref(found), first, last)
        for event in (first, last):
            self.driver.call("cuEventDestroy_v2", event)
        if found.value <= 0:
            raise Unmeasured("the driver's clock stood still")
        return found.value / 1000

    def timed(self, run: _Call, count: int) -> float:
        """Return the GPU's seconds for so many runs, by its own clock."""
        first = self.mark()
        for _ in range(count):
            run()
        last = self.mark()
        self.wait()
        return self.between(first, last)


def _count_runs(device: _Device, run: _Call, seconds: float) -> int:
    """Warm up, and return how many runs take so long."""
    once = device.timed(run, _MIN_RUNS) / _MIN_RUNS
    warm = max(1, int(_WARM_S / once))
    once = device.timed(run, warm) / warm
    return max(1, int(seconds / once))


def _measure_rate(device: _Device, run: _Call, amount: float) -> float:
    """Return the amount a second, where each run does `amount`: the median round."""
    count = _count_runs(device, run, _PART_S / _ROUNDS)
    return statistics.median(count * amount / device.timed(run, count) for _ in range(_ROUNDS))


class _Product:
    """A product of two matrices by cuBLASLt: bf16, or fp8 (E4M3) with fast accumulation.

    As engines run it: the left matrix transposed, sums in 32 bits, the result in bf16.
    """

    def __init__(self, device: _Device, library: ctypes.CDLL, *, fp8: bool) -> None:
        self._library = library
        self._keep: list[Any] = []
        bytes_each = 1 if fp8 else 2
        kind = _R_8F_E4M3 if fp8 else _R_16BF
        size = _SIDE * _SIDE * bytes_each
        data = _make_random_fp8() if fp8 else _make_random_bf16()
        device.upload(0, data, 2 * size)
        left, right, result = device.arena, device.arena + size, device.arena + 2 * size
        workspace = result + _SIDE * _SIDE * 2
        handle = self._handle("cublasLtCreate")
        described = self._handle("cublasLtMatmulDescCreate", _COMPUTE_32F, _R_32F)
        self._set(described, _TRANSA, ctypes.c_int(1))
        self._set(described, _TRANSB, ctypes.c_int(0))
        if fp8:
            scales = workspace + _WORKSPACE
            device.upload(scales - device.arena, b"\x00\x00\x80\x3f" * 2, 8)
            self._set(described, _A_SCALE, ctypes.c_uint64(scales))
            self._set(described, _B_SCALE, ctypes.c_uint64(scales))
            self._set(described, _FAST_ACCUM, ctypes.c_int8(1))
        side = ctypes.c_uint64(_SIDE)
        given, made = (
            self._handle("cublasLtMatrixLayoutCreate", which, side, side, ctypes.c_int64(_SIDE))
            for which in (kind, _R_16BF)
        )
        preference = self._handle("cublasLtMatmulPreferenceCreate")
        room = ctypes.c_size_t(_WORKSPACE)
        self._call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            _MAX_WORKSPACE,
            ctypes.byref(room),
            ctypes.c_size_t(ctypes.sizeof(room)),
        )
        found = (ctypes.c_uint8 * _HEURISTIC_BYTES)()
        count = ctypes.c_int()
        layouts = (given, given, made, made)
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            handle,
            described,
            *layouts,
            preference,
            1,
            ctypes.byref(found),
            ctypes.byref(count),
        )
        if count.value < 1:
            raise Unmeasured("cuBLASLt knows no way to do it on this GPU")
        one, nothing = ctypes.c_float(1), ctypes.c_float(0)
        algorithm = (ctypes.c_uint8 * _ALGORITHM_BYTES).from_buffer(found)
        self._keep += [found, one, nothing, algorithm]
        self._arguments = (
            handle,
            described,
            ctypes.byref(one),
            ctypes.c_uint64(left),
            given,
            ctypes.c_uint64(right),
            given,
            ctypes.byref(nothing),
            ctypes.c_uint64(result),
            made,
            ctypes.c_uint64(result),
            made,
            ctypes.byref(algorithm),
            ctypes.c_uint64(workspace),
            room,
            device.stream,
        )

    def __call__(self) -> None:
        """Put one product into the stream."""
        self._call("cublasLtMatmul", *self._arguments)

    def _call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        function = getattr(self._library, name, None)
        if function is None:
            raise Unmeasured(f"the library has no {name}")
        status = function(*arguments)
        if status != _OK:
            raise Unmeasured(f"{name}: status {status}")

    def _handle(self, name: str, *arguments: Any) -> ctypes.c_uint64:  # noqa: ANN401
        handle = ctypes.c_uint64()
        self._call(name, ctypes.byref(handle), *arguments)
        return handle

    def _set(self, described: ctypes.c_uint64, which: int, value: Any) -> None:  # noqa: ANN401
        size = ctypes.c_size_t(ctypes.sizeof(value))
        arguments = (described, which, ctypes.byref(value), size)
        self._call("cublasLtMatmulDescSetAttribute", *arguments)


def _make_random_bf16() -> bytes:
    """Return numbers between 1/8 and 2 of either sign: zeros would run faster."""
    table = bytes((0x3E, 0x3F, 0xBE, 0xBF)[byte & 3] for byte in range(256))
    made = random.Random(0)  # noqa: S311  (no secret)
    data = bytearray(_RANDOM)
    data[0::2] = made.randbytes(_RANDOM // 2)
    data[1::2] = made.randbytes(_RANDOM // 2).translate(table)
    return bytes(data)


def _make_random_fp8() -> bytes:
    """Return the same in E4M3: a sign, an exponent of four bits near 1, three bits of mantissa."""
    table = bytes(byte & 0x80 | (4 + (byte >> 3 & 3)) << 3 | byte & 7 for byte in range(256))
    return random.Random(0).randbytes(_RANDOM).translate(table)  # noqa: S311  (no secret)


def _measure_matrix(device: _Device, libraries: list[str], *, fp8: bool) -> dict[str, Any]:
    name, since = ("fp8", _FP8_SINCE) if fp8 else ("bf16", _BF16_SINCE)
    if device.capability < since:
        raise Unmeasured(f"its matrix units have no {name}")
    if not libraries:
        raise Unmeasured("no cuBLASLt library (libcublasLt.so) was found")
    reasons = []
    for path in libraries:
        try:
            product = _Product(device, ctypes.CDLL(path), fp8=fp8)
            rate = _measure_rate(device, product, 2.0 * _SIDE**3)
        except OSError as error:
            reasons.append(f"{path}: {error}")
        except Unmeasured as error:
            reasons.append(f"{path}: {error}")
        else:
            return {"flops_per_s": round(rate), "by": path}
    raise Unmeasured("; ".join(reasons))


def _measure_bandwidth(device: _Device) -> dict[str, Any]:
    """Return bytes read and written a second: half of the copied bytes are read, half written."""
    return {"bytes_per_s": round(_measure_rate(device, device.copy_within, float(ARENA)))}


def _measure_copy(device: _Device) -> dict[str, Any]:
    return {"bytes_per_s": round(_measure_rate(device, device.copy_in, float(PINNED)))}


def measure_alone(config: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Measure the one GPU that is visible; each part by itself."""
    device = _Device(_start(), 0, config["cpus"])
    libraries = config["libraries"]
    parts: tuple[tuple[str, Callable[[], dict[str, Any]]], ...] = (
        ("memory", lambda: _measure_bandwidth(device)),
        ("copy", lambda: _measure_copy(device)),
        ("bf16", lambda: _measure_matrix(device, libraries, fp8=False)),
        ("fp8", lambda: _measure_matrix(device, libraries, fp8=True)),
    )
    for name, measure in parts:
        started = time.monotonic()
        found: dict[str, Any] = {"part": name, "reason": None}
        try:
            found.update(measure())
        except Unmeasured as error:
            found["reason"] = str(error)
        say({**found, "seconds": round(time.monotonic() - started, 2)})


def measure_together(config: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Copy to all visible GPUs at once, each from memory of its own node."""
    started = time.monotonic()
    driver = _start()
    devices = [_Device(driver, place, cpus) for place, cpus in enumerate(config["cpus"])]
    counts = []
    for device in devices:
        device.use()
        counts.append(_count_runs(device, device.copy_in, _PART_S))
    marks = []
    for device, count in zip(devices, counts):
        device.use()
        first = device.mark()
        for _ in range(count):
            device.copy_in()
        marks.append((first, device.mark()))
    rates = []
    for device, count, (first, last) in zip(devices, counts, marks):
        device.use()
        device.wait()
        rates.append(round(count * PINNED / device.between(first, last)))
    seconds = round(time.monotonic() - started, 2)
    say({"part": "together", "reason": None, "bytes_per_s": rates, "seconds": seconds})


def _start() -> _Driver:
    driver = _Driver()
    driver.call("cuInit", 0)
    return driver


def main(given: str | None = None) -> int:
    """Run the task of standard input; a part without a figure gets a line with the reason."""
    config = json.loads(sys.stdin.read() if given is None else given)

    def say(found: dict[str, Any]) -> None:
        print(json.dumps(found), flush=True)

    try:
        (measure_together if config["together"] else measure_alone)(config, say)
    except Unmeasured as error:
        say({"part": None, "reason": str(error)})
    # Threads of the driver may keep the interpreter from ending.
    sys.stdout.flush()
    os._exit(0)
