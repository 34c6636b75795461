"""Which engines count what keys use."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import key_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S = 5.0


def find_uncounted(plan: Mapping[str, Any]) -> list[int]:
    """Return the instances whose engine runs since before it could count: limits miss them."""
    serving = [row for row in plan.get("instances") or () if row.get("port") is not None]
    return [int(row["index"]) for row in serving if _is_counting(row["port"]) is False]


def _is_counting(port: int) -> bool | None:
    """Whether the engine at a port counts; None where it does not answer."""
    engine = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        engine.request("GET", "/health")
        return engine.getresponse().getheader(key_rules.COUNTS_HEADER) is not None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        engine.close()
