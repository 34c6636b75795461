"""What a machine does while it does not serve on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kimi_prov.planner.settings.parsing import Settings


def document(settings: Settings) -> dict[str, Any]:
    """Give the plan's `rest`: what becomes of the memory that holds the weights."""
    return {"memory": settings.stopped_memory}
