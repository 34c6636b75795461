"""The project's own kernel for INT4 experts (native/), by ctypes: no torch is needed here."""

from __future__ import annotations

import ctypes
from array import array
from typing import TYPE_CHECKING

from kimi_kt_experts.build import LIBRARY
from kimi_kt_experts.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Tokens in one call: scratch memory, some 100 MB for Kimi, is of that size.
CHUNK = 4096
# From so many tokens of an expert on, AMX's tiles are faster than VNNI (docs/guides/kt-experts.md).
CROSSOVER = 5
# The same for dense weights, of which VNNI multiplies eight tokens in one pass.
DENSE_CROSSOVER = 9
# What a dense matrix has to be a multiple of: rows by block, columns by half a group.
DENSE_ROWS, DENSE_COLUMNS = 16, 64


class Library:
    """The compiled kernel, loaded into a process. The build chosen last computes."""

    def __init__(self, path: Path = LIBRARY, build: str = "") -> None:
        if not path.exists():
            raise Refusal(
                f"{path} is not there",
                "the compiled kernel",
                "run `python -m kimi_kt_experts.build`, which needs a C compiler, or set "
                "KIMI_EXPERTS=kt",
            )
        self._library = ctypes.CDLL(str(path))
        where, count, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        self._choose = self._function("choose", ctypes.c_char_p, ctypes.c_char_p)
        self.bytes = self._function("bytes", size, count, count, count)
        self.new = self._function("new", where, size)
        self.free = self._function("free", None, where, size)
        self.read = self._function("read", size, where, size)
        self.pack = self._function("pack", None, where, *[count] * 5, where)
        self.threads = self._function("threads", count)
        self.run = self._function("run", count, where, *[count] * 5, *[where] * 4, count)
        self.dense_bytes = self._function("dense_bytes", size, count, count)
        self.dense_pack = self._function("dense_pack", None, where, count, count, where)
        self.dense_run = self._function(
            "dense_run", count, where, *[count] * 3, where, where, count
        )
        self.step = self._function("step", count, where)
        self._nodes = self._function("nodes", count, count, where, count, where)
        self._where = self._function("where", None, where)
        self._bind = self._function("bind", None, where)
        self.copy = self._function("copy", None, where, where, size, count)
        self.build = self.choose(build)

    def choose(self, build: str = "") -> str:
        """Compute by that build, or by the best that runs here."""
        found = self._choose(build.encode())
        if found is None:
            raise Refusal(f"this CPU cannot run the kernel's build {build or 'for AVX2'}", "AVX2")
        self.build = str(found.decode())
        return self.build

    def cut(self, of: Sequence[int], system: Sequence[int] = ()) -> None:
        """Cut what is laid out from now on over NUMA nodes, or with no threads over none.

        `of`: by thread its node, from 0 on. `system`: by node the machine's number of it; without
        it memory lies where it comes, as on an emulated machine.
        """
        count = max(of, default=0) + 1
        numbers = array("i", system or [-1] * count)
        nodes = array("i", of)
        addresses = (row.buffer_info()[0] for row in (nodes, numbers))
        if self._nodes(len(of), next(addresses), count, next(addresses)):
            raise Refusal(
                f"weights cannot be cut over the nodes {list(of)}", "before any are there"
            )

    def bound_nodes(self) -> list[int]:
        """By thread the NUMA node of its CPU; below zero where it is not bound to one CPU."""
        found = array("i", [-1]) * self.threads()
        self._where(found.buffer_info()[0])
        return list(found)

    def bind(self, cpus: Sequence[int]) -> None:
        """Bind each thread to one CPU, but not the caller's own."""
        wanted = array("i", cpus)
        self._bind(wanted.buffer_info()[0])

    def _function(self, name: str, result: object, *arguments: object) -> ctypes._NamedFuncPointer:
        found = getattr(self._library, f"kimi_experts_{name}")
        found.restype, found.argtypes = result, arguments
        return found


class Held:
    """Memory of the kernel's, in huge pages where there are some, given back with its holder."""

    def __init__(self, kernel: Library, size: int, what: str) -> None:
        """Take `size` bytes for `what`."""
        self._kernel, self.size = kernel, size
        self._weights = kernel.new(size)
        if not self._weights:
            raise Refusal(f"no memory for {what}", f"{size / 1e9:.2f} GB")

    def __del__(self) -> None:
        """Give the memory back."""
        if getattr(self, "_weights", None):
            self._kernel.free(self._weights, self.size)

    @property
    def address(self) -> int:
        """Where it is."""
        return int(self._weights)

    def read(self) -> None:
        """Read all its bytes: what the speed of computing with them is held against."""
        self._kernel.read(self._weights, self.size)


class Layer(Held):
    """The experts of one layer, or a rank's slice of each, in the kernel's form."""

    def __init__(
        self,
        kernel: Library,
        addresses: Sequence[int],
        sizes: tuple[int, int, int],
        part: tuple[int, int] = (0, 1),
    ) -> None:
        """Lay the experts out.

        `addresses`: of each expert gate, up and down, then their scales, as in the checkpoint.
        `sizes`: experts, hidden size, an expert's width. `part`: of the width, which of how many.
        """
        experts, hidden, whole = sizes
        width = whole // part[1]
        self._sizes = (experts, hidden, width)
        super().__init__(kernel, kernel.bytes(*self._sizes), "a layer of experts")
        rows = array("Q", addresses)
        kernel.pack(self._weights, *self._sizes, whole, part[0] * width, rows.buffer_info()[0])

    @property
    def name(self) -> str:
        """Which build computes, for the log."""
        return f"the own kernel for {self._kernel.build}"

    def compute(
        self,
        tokens: int,
        top_k: int,
        hidden: int,
        ids: int,
        weights: int,
        out: int,
        crossover: int = CROSSOVER,
    ) -> None:
        """Compute so many tokens; addresses of bf16, int64, float32 and, of the output, bf16."""
        sizes = (*self._sizes, tokens, top_k)
        if self._kernel.run(self._weights, *sizes, hidden, ids, weights, out, crossover):
            raise MemoryError(f"no memory to compute {tokens} tokens")


class Dense(Held):
    """A dense matrix in int8, with a scale for each row and group of 128 columns."""

    def __init__(self, kernel: Library, address: int, rows: int, columns: int) -> None:
        """Lay a matrix out, from bf16 in rows at `address`."""
        self.rows, self.columns = rows, columns
        super().__init__(kernel, kernel.dense_bytes(rows, columns), "a dense matrix")
        kernel.dense_pack(self._weights, rows, columns, address)

    def compute(self, tokens: int, hidden: int, out: int, crossover: int = DENSE_CROSSOVER) -> None:
        """Multiply so many tokens; addresses of bf16, both in rows."""
        sizes = (self.rows, self.columns, tokens)
        if self._kernel.dense_run(self._weights, *sizes, hidden, out, crossover):
            raise MemoryError(f"no memory to compute {tokens} tokens")


class Rows(Held):
    """Rows of any numbers as they are, each on the node whose threads read it."""

    def __init__(self, kernel: Library, address: int, size: int, count: int) -> None:
        """Copy `size` bytes, which are `count` things one after the other."""
        super().__init__(kernel, size, "a matrix")
        kernel.copy(self._weights, address, size, count)


def takes_dense(rows: int, columns: int) -> bool:
    """Whether a matrix can be held in int8."""
    return rows > 0 and columns > 0 and not (rows % DENSE_ROWS or columns % DENSE_COLUMNS)
