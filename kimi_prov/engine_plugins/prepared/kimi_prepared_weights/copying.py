"""Copies bytes between a file and the storages of a rank, with a sum of each chunk.

A sum is made where the bytes arrive: on the card, at the rate of its memory. It is 64 bits wide,
and one changed word always changes it. It finds damage; a forger could replace the file anyway.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from kimi_prepared_weights.store import CHUNK, PAGE, Block, DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kimi_prepared_weights.holdings import Held

# An odd number: by it every word counts, each in its place differently.
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
_WORD = 8
# Bytes that are registered at once, and how far registration runs ahead of the copy.
_WINDOW, _AHEAD = 256 << 20, 4
_READERS, _STAGE = 8, 32 << 20
_PORTABLE, _READ_ONLY = 1, 8
log = logging.getLogger("vllm.kimi_prepared_weights")


@dataclass
class Sums:
    """Makes sums on one device; the factors of words are kept there."""

    device: torch.device
    _factors: torch.Tensor | None = field(default=None, init=False)

    def compute(self, data: torch.Tensor) -> torch.Tensor:
        """Return the sum of a chunk as a tensor of one number."""
        if self._factors is None:
            steps = torch.arange(1, CHUNK // _WORD + 1, dtype=torch.int64, device=self.device)
            self._factors = steps.mul_(_FACTOR).bitwise_or_(1)
        whole = len(data) // _WORD * _WORD
        words = data[:whole].view(torch.int64)
        total = (words * self._factors[: len(words)]).sum()
        if whole < len(data):
            rest = torch.zeros(_WORD, dtype=torch.uint8, device=self.device)
            rest[: len(data) - whole] = data[whole:]
            total = total * 3 + rest.view(torch.int64)[0]
        return total


def read_chunks(
    storage: torch.Tensor, sums: Sums | None = None
) -> Iterator[tuple[memoryview, int]]:
    """Read a storage in chunks, each with its sum; `sums` are those of its device."""
    sums = sums or Sums(storage.device)
    stage = None
    if storage.device.type == "cuda":
        stage = torch.empty(min(CHUNK, len(storage)), dtype=torch.uint8, pin_memory=True)
    for start in range(0, len(storage), CHUNK):
        part = storage[start : start + CHUNK]
        total = int(sums.compute(part))
        if stage is not None:
            part = stage[: len(part)].copy_(part)
        yield memoryview(part.numpy()), total


class Piece(NamedTuple):
    """A chunk of a block: where it goes, where it lies in the file, and its sum."""

    target: torch.Tensor
    offset: int
    sum: int
    path: str


class Copied(NamedTuple):
    """How a file came into a rank."""

    size: int
    seconds: float
    way: str


def list_pieces(storages: Sequence[Held], blocks: Sequence[Block]) -> list[Piece]:
    """Pair storages with their blocks, chunk by chunk. Raises DamagedError where they differ."""
    if [(s.path, len(s.tensor)) for s in storages] != [(b.path, b.size) for b in blocks]:
        raise DamagedError("it has other storages than this rank")
    return [
        Piece(storage.tensor[at : at + CHUNK], block.offset + at, block.sums[index], block.path)
        for storage, block in zip(storages, blocks, strict=True)
        for index, at in enumerate(range(0, block.size, CHUNK))
    ]


def copy_file(path: Path, pieces: Sequence[Piece], way: str | None = None) -> Copied:
    """Copy a file into storages and check each sum. Raises DamagedError at a wrong one.

    `way`: `staged` reads the file by threads into pinned memory, `registered` maps and registers
    it, `plain` copies the mapping as it is. None: staged on a card, the fastest from pages of
    4 KiB and from huge ones (docs/reference/loaders.md); plain elsewhere.
    """
    began = time.perf_counter()
    on_card = any(piece.target.is_cuda for piece in pieces)
    sums: list[torch.Tensor]
    if not on_card or way == "plain":
        way, sums = "plain", _copy_plain(path, pieces)
    else:
        way, sums = _copy_to_card(path, pieces, way or "staged")
    found = torch.stack([total.cpu() for total in sums]).tolist() if sums else []
    for piece, total in zip(pieces, found, strict=True):
        if total != piece.sum:
            raise DamagedError(f"{piece.path} has another sum at byte {piece.offset}")
    size = sum(len(piece.target) for piece in pieces)
    return Copied(size, time.perf_counter() - began, way)


class RegistrationError(Exception):
    """The driver does not register this file's mapping, as it may not for files on disks."""


def _copy_to_card(path: Path, pieces: Sequence[Piece], way: str) -> tuple[str, list[torch.Tensor]]:
    if way == "registered":
        try:
            return way, _copy_registered(path, pieces)
        except RegistrationError as error:
            log.warning("Prepared weights are not registered: %s", error)
    return "staged", _copy_staged(path, pieces)


def _map_file(path: Path, access: int) -> mmap.mmap:
    with path.open("r+b" if access == mmap.ACCESS_WRITE else "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=access)


def _copy_plain(path: Path, pieces: Sequence[Piece]) -> list[torch.Tensor]:
    sums: dict[torch.device, Sums] = {}
    found = []
    # A copy on write costs nothing where nobody writes; torch warns of memory that is read-only.
    mapped = torch.frombuffer(_map_file(path, mmap.ACCESS_COPY), dtype=torch.uint8)
    for piece in pieces:
        piece.target.copy_(mapped[piece.offset : piece.offset + len(piece.target)])
        device = piece.target.device
        found.append(sums.setdefault(device, Sums(device)).compute(piece.target))
    return found


def _copy_registered(path: Path, pieces: Sequence[Piece]) -> list[torch.Tensor]:
    """Copy at the rate of the bus: a thread registers windows ahead of the copies."""
    try:
        mapped = torch.frombuffer(_map_file(path, mmap.ACCESS_WRITE), dtype=torch.uint8)
    except OSError as error:
        raise RegistrationError(str(error)) from None
    sums: dict[torch.device, Sums] = {}
    found: list[torch.Tensor] = []
    with _Registrar(mapped.data_ptr(), _cut_windows(pieces)) as registrar:
        for window in registrar.take_windows():
            for piece in window:
                source = mapped[piece.offset : piece.offset + len(piece.target)]
                piece.target.copy_(source, non_blocking=True)
                device = piece.target.device
                found.append(sums.setdefault(device, Sums(device)).compute(piece.target))
    return found


class _Registrar:
    """Registers windows ahead of a copy, and lets them go behind it."""

    def __init__(self, base: int, windows: list[list[Piece]]) -> None:
        self._base, self._windows = base, windows
        # A thread begins on the first card, where it would make a context of its own.
        device = torch.cuda.current_device()
        self._ahead = ThreadPoolExecutor(1, initializer=torch.cuda.set_device, initargs=(device,))
        self._behind = ThreadPoolExecutor(1, initializer=torch.cuda.set_device, initargs=(device,))
        self._registered: deque[Future[int]] = deque()
        self._copied: deque[tuple[torch.cuda.Event, int]] = deque()

    def __enter__(self) -> _Registrar:
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._registered:
            if not future.cancel() and future.exception() is None:
                torch.cuda.cudart().cudaHostUnregister(future.result())
        while self._copied:
            self._behind.submit(_unregister, *self._copied.popleft())
        self._ahead.shutdown()
        self._behind.shutdown()

    def take_windows(self) -> Iterator[list[Piece]]:
        """Yield each window once it is registered; what is done with it ends before the next."""
        following = iter(self._windows)
        for window in [next(following, None) for _ in range(_AHEAD)]:
            self._submit(window)
        for window in self._windows:
            start = self._registered.popleft().result()
            yield window
            event = torch.cuda.Event()
            event.record()
            self._copied.append((event, start))
            self._submit(next(following, None))
            if len(self._copied) > _AHEAD:
                self._behind.submit(_unregister, *self._copied.popleft())

    def _submit(self, window: list[Piece] | None) -> None:
        if window is not None:
            self._registered.append(self._ahead.submit(_register, self._base, window))


def _cut_windows(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Cut pieces, which follow one another in the file, into windows that are registered whole."""
    windows: list[list[Piece]] = []
    for piece in pieces:
        end = piece.offset + len(piece.target)
        if not windows or end - windows[-1][0].offset > _WINDOW:
            windows.append([])
        windows[-1].append(piece)
    return windows


def _register(base: int, window: Sequence[Piece]) -> int:
    last = window[-1]
    start = base + window[0].offset // PAGE * PAGE
    size = base + last.offset + len(last.target) - start
    code = torch.cuda.cudart().cudaHostRegister(start, size, _PORTABLE)
    if int(code) != 0:
        # Some drivers take a file's mapping only as memory that the card does not write.
        code = torch.cuda.cudart().cudaHostRegister(start, size, _PORTABLE | _READ_ONLY)
    if int(code) != 0:
        raise RegistrationError(f"cudaHostRegister answered {int(code)}")
    return start


def _unregister(event: torch.cuda.Event, start: int) -> None:
    event.synchronize()
    torch.cuda.cudart().cudaHostUnregister(start)


def _copy_staged(path: Path, pieces: Sequence[Piece]) -> list[torch.Tensor]:
    """Copy by threads, each with pinned memory and a stream of its own."""
    found: list[torch.Tensor | None] = [None] * len(pieces)
    order = iter(range(len(pieces)))
    lock = threading.Lock()
    with path.open("rb") as file:
        number = file.fileno()

        def read_some() -> None:
            stage = torch.empty(_STAGE, dtype=torch.uint8, pin_memory=True)
            stream = torch.cuda.Stream()
            sums = Sums(torch.device("cuda", torch.cuda.current_device()))
            while True:
                with lock:
                    index = next(order, None)
                if index is None:
                    return
                piece = pieces[index]
                with torch.cuda.stream(stream):
                    for at in range(0, len(piece.target), _STAGE):
                        part = piece.target[at : at + _STAGE]
                        _read_exactly(number, stage[: len(part)], piece.offset + at)
                        part.copy_(stage[: len(part)], non_blocking=True)
                        stream.synchronize()
                    found[index] = sums.compute(piece.target)
                stream.synchronize()

        device = torch.cuda.current_device()

        def run() -> None:
            torch.cuda.set_device(device)
            read_some()

        with ThreadPoolExecutor(_READERS) as readers:
            for future in [readers.submit(run) for _ in range(_READERS)]:
                future.result()
    return [total for total in found if total is not None]


def _read_exactly(number: int, target: torch.Tensor, offset: int) -> None:
    view = memoryview(target.numpy())
    while view:
        count = os.preadv(number, [view], offset)
        if count == 0:
            raise DamagedError(f"it ends at byte {offset}")
        view, offset = view[count:], offset + count
