"""Which engines count what keys use."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING

from kimi_prov.contract import key_rules

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import Plan

_TIMEOUT_S = 5.0


def find_uncounted(plan: Plan) -> list[int]:
    """Return the instances whose engine started before it could count: limits do not see them."""
    ports = [(row["index"], row.get("port")) for row in plan.get("instances") or ()]
    return [index for index, port in ports if port is not None and _is_counting(port) is False]


def _is_counting(port: int) -> bool | None:
    """Return whether the engine at a port counts; None where it does not answer."""
    engine = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        engine.request("GET", "/health")
        return engine.getresponse().getheader(key_rules.COUNTS_HEADER) is not None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        engine.close()
