"""Action `kimi_web_data`: fetch an archive of what the page keeps, or bring one and restore it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.ansible import file_transfer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class ActionModule(file_transfer.Carrying):
    """What the page keeps, and nothing else of the machine."""

    subcommand = "web-backup"

    def facts(self, told: Mapping[str, Any], file: Path) -> dict[str, Any]:
        """Return what the archive holds."""
        del file
        return file_transfer.page(told)
