"""Action `kimi_web_data`: fetch the web UI's data, or restore it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.file_transfer import FileTransfer, read_web_data

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DOCUMENTATION = """
module: kimi_web_data
short_description: Fetches or restores only the web UI's data
description: Gives the host's document.
options:
  work:
    type: str
    choices: [backup, restore]
    required: true
    description: Whether the archive is fetched from the machine or restored there.
  file:
    type: str
    required: true
    description: The file; C({host}) stands for the host's name.
  source:
    type: str
    description: For a restore, the path to read the archive from if it is not C(file).
  recipients:
    type: list
    elements: str
    default: []
    description: For a backup, the keys to encrypt it to.
"""


class ActionModule(FileTransfer):
    """Accounts, chats and uploads."""

    subcommand = "web-backup"

    def read_contents(self, contents: Mapping[str, Any], file: Path) -> dict[str, Any]:
        """Return what the archive holds."""
        del file
        return read_web_data(contents)
