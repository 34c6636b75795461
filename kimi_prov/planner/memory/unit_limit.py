"""How much memory the unit of an engine may take at most: what nobody else is planned to use.

The kernel charges a unit with its processes' memory (weights, CPU experts, caches, pinned memory),
and with each page of a file or of a tmpfs that it touches first. Pages of files are given back when
the limit is reached, so they need no room of their own; but a limit that left them less than the
machine could would slow a load down. So the limit is no sum of what the engine needs: it is the
host's memory without what others need. A runaway engine then ends by its own limit, and the kernel
never has to choose another process.

Decides: the memory limit of each serve unit.
Applied by: roles/serve.
Held by: tests/unit/planner/memory/test_unit_limit.py, tests/lab/test_memory_limit.py.
"""

from __future__ import annotations

from dataclasses import dataclass

# A limit must leave the engine this much more than its planned resident memory, or there is none.
_MARGIN = 1.05
# Another kernel sees some MiB more or less of the same memory: the limit stays as it is.
_STEP = 256 << 20


@dataclass(frozen=True)
class Use:
    """The planned use of a host's memory, in bytes.

    `reserve`: left to the system and the other services (2 %, at least 1 GiB). `ram_disk`: the
    pages of the weights' tmpfs, which kimi-stage touches first and systemd's own group keeps.
    `resident`: of all engines together, without pages of files. `engines`: their number.
    """

    memory: int
    reserve: int
    ram_disk: int
    resident: int
    engines: int

    @property
    def resident_each(self) -> int:
        """Return the planned resident bytes of one engine."""
        return -(-self.resident // self.engines)


def choose_limit(use: Use) -> int | None:
    """Return the most bytes that the unit of one engine may take; None where none is safe.

    It is what is left beside the system, the RAM disk and the other engines' resident memory. Where
    that hardly holds the engine itself, a limit could end an engine that would just have fit.
    """
    others = use.resident - use.resident_each
    left = use.memory - use.reserve - use.ram_disk - others
    return left // _STEP * _STEP if left - _STEP >= use.resident_each * _MARGIN else None
