"""Action `kimi_backup`: fetch what of a machine cannot be made again, or restore it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible import file_transfer
from kimi_prov.operate import encryption

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ActionModule(file_transfer.Carrying):
    """Keys' hashes, certificate, ACME account, history, and what the page keeps."""

    subcommand = "backup"

    def facts(self, told: Mapping[str, Any], file: Path) -> dict[str, Any]:
        """Return what the archive holds, and what was left out of it or of the machine."""
        page, digest = told.get("page"), told.get("certificate_sha256")
        return {
            "encrypted_with": encryption.program_of(file),
            "hostname": file_transfer.text(told, "hostname"),
            **file_transfer.numbers(told, "made_unix", "history"),
            "keys": file_transfer.texts(told, "keys"),
            "certificate_sha256": digest if _SHA256.fullmatch(str(digest)) else None,
            "acme_account": told.get("acme_account") is True,
            "page": file_transfer.page(page) if isinstance(page, dict) else None,
            "left_out": file_transfer.texts(told, "left_out"),
        }
