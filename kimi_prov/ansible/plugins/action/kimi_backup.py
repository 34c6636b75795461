"""Action `kimi_backup`: fetch the data of a machine that cannot be created again, or restore it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.file_transfer import (
    FileTransfer,
    read_numbers,
    read_text,
    read_texts,
    read_web_data,
)
from kimi_prov.operate import encryption

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DOCUMENTATION = """
module: kimi_backup
short_description: Fetches or restores keys' hashes, certificate, ACME account, history, web UI
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

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ActionModule(FileTransfer):
    """The machine's answer is validated before it is used."""

    subcommand = "backup"

    def read_contents(self, contents: Mapping[str, Any], file: Path) -> dict[str, Any]:
        """Return what the archive holds, and what was not saved or not restored."""
        page, digest = contents.get("page"), contents.get("certificate_sha256")
        return {
            "encrypted_with": encryption.find_program(file),
            "hostname": read_text(contents, "hostname"),
            **read_numbers(contents, "made_unix", "history"),
            "keys": read_texts(contents, "keys"),
            "certificate_sha256": digest if _SHA256.fullmatch(str(digest)) else None,
            "acme_account": contents.get("acme_account") is True,
            "page": read_web_data(page) if isinstance(page, dict) else None,
            "left_out": read_texts(contents, "left_out"),
        }
