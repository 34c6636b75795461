"""Action `kimi_web_data`: fetch the web UI's data, or restore it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.file_transfer import OPTIONS, FileTransfer, read_web_data

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DOCUMENTATION = f"""
module: kimi_web_data
short_description: Fetches or restores only the web UI's data
description: Gives the host's document.
{OPTIONS}
"""


class ActionModule(FileTransfer):
    """Accounts, chats and uploads."""

    subcommand = "web-backup"

    def read_contents(self, contents: Mapping[str, Any], file: Path) -> dict[str, Any]:
        """Return what the archive holds."""
        del file
        return read_web_data(contents)
