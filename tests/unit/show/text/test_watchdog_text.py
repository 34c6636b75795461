"""What `status` says of the watchdog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.show.text.activity import format_watchdog

if TYPE_CHECKING:
    from kimi_prov.contract.documents.status.machine import WatchdogStatus


def test_an_engine_that_reached_its_memory_limit_is_named_with_the_time() -> None:
    found: WatchdogStatus = {
        "enabled": True,
        "state": "active",
        "reason": "",
        "bundles": 0,
        "last_hang": None,
    }
    assert "memory limit" not in " ".join(format_watchdog(found))
    ends = [{"unit": "kimi-serve@0.service", "at": "2026-11-29T21:00:00Z"}]
    words = " ".join(" ".join(format_watchdog({**found, "memory_ended": ends})).split())
    assert "kimi-serve@0.service reached its memory limit at 2026-11-29T21:00:00Z" in words
