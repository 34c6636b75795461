"""Bench results that are kept on the control machine from one run to the next.

They outlive the machine's installation: a machine that was set up again is compared with itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.user_dirs import make_private, write_private

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def find_folder(state: Path, inventory: Path, host: str) -> Path:
    """Return the folder of one host's results; `state` is the folder of this user's state."""
    real = str(inventory.resolve())
    words = _NAME.sub("-", inventory.resolve().name).strip("-.") or "inventory"
    owner = f"{words[:60]}-{hashlib.sha256(real.encode()).hexdigest()[:8]}"
    return state / "bench" / owner / (_NAME.sub("-", host).strip("-.") or "host")


def read_last(folder: Path) -> dict[str, Any] | None:
    """Return the newest result in a host's folder; one that cannot be read is skipped."""
    for path in sorted(folder.glob("*.json"), reverse=True):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(result, dict):
            return result
    return None


def save(folder: Path, result: dict[str, Any]) -> Path:
    """Write a result under the present time; return its file."""
    make_private(folder)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    write_private(path, clean_text.as_json(result, indent=1) + "\n")
    return path
