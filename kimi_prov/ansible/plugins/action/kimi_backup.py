"""Action `kimi_backup`: fetch what of a machine cannot be made again, or restore it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible import carrying
from kimi_prov.operate import encryption

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ActionModule(carrying.Carrying):
    """Keys' hashes, certificate, ACME account, history, and what the page keeps."""

    subcommand = "backup"

    def facts(self, told: Mapping[str, Any], file: Path) -> dict[str, Any]:
        """Return what the archive holds, and what was left out of it or of the machine."""
        page, digest = told.get("page"), told.get("certificate_sha256")
        return {
            "encrypted_with": encryption.program_of(file),
            "hostname": carrying.text(told, "hostname"),
            **carrying.numbers(told, "made_unix", "history"),
            "keys": carrying.texts(told, "keys"),
            "certificate_sha256": digest if _SHA256.fullmatch(str(digest)) else None,
            "acme_account": told.get("acme_account") is True,
            "page": carrying.page(page) if isinstance(page, dict) else None,
            "left_out": carrying.texts(told, "left_out"),
        }
