"""Read the operator's metrics key on the control machine; a machine gets only its hash."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.acceptance.api_keys import MIN_KEY_LENGTH
from kimi_prov.errors import UserError
from kimi_prov.on_host.keys.publish import hash_key

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import Plan

_KEY = re.compile(rf"[!-~]{{{MIN_KEY_LENGTH},200}}")


def load_key(path: Path) -> str:
    """Return the key in a file of one line. Raises UserError, which never holds the key."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"kimi_metrics_key_file: {path} cannot be read: "
            f"{getattr(error, 'strerror', None) or 'it is no text'}",
            fix="name a text file with the key in one line",
        ) from error
    if not _KEY.fullmatch(text):
        raise UserError(
            f"kimi_metrics_key_file: {path} holds no key of {MIN_KEY_LENGTH} to 200 characters in "
            "one line without spaces",
            fix="make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return text


def make_settings(plan: Plan) -> dict[str, Any] | None:
    """Return the machine's settings of the key; None where it has no metrics."""
    if not plan.get("metrics"):
        return None
    file = plan["control"].get("metrics_key_file")
    return {"sha256": hash_key(load_key(Path(file))) if file else None}
