"""Access to what only the served machine can answer: counters, tokens, files, a unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from kimi_prov.contract.errors import HostError

Question = dict[str, Any]
Found = dict[str, Any]


@dataclass(frozen=True)
class MachineTarget:
    """`ask` sends a query of `machine.ANSWERS` to the machine; None where it cannot be reached.

    `why`: the reason for None.
    """

    ask: Callable[[Question], Found] | None
    why: str = ""

    def request(self, what: str, **more: object) -> Found:
        """Return the machine's answer: `reason` is why there is none, empty where there is one."""
        if self.ask is None:
            return {"reason": self.why}
        try:
            found = self.ask({"what": what, **more})
        except HostError as error:
            return {"reason": error.line}
        return {**found, "reason": str(found.get("reason") or "")}
