"""The machine key: made on the machine, known only to its proxy and its engines.

The proxy sends it with each request, and an engine answers no request without it.
`/etc/kimi/machine-key.map` holds one line, `engine KEY`: HAProxy reads it as a map, so the key is
in one file only.

Decides: the machine key between proxy and engine.
Applied by: roles/proxy, roles/serve.
Held by: tests/unit/on_host/engine/test_gate.py, tests/component/on_host/engine/test_launch.py,
  tests/engines/test_gate_in_engines.py, tests/lab/test_engine_key.py.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from kimi_prov.contract.paths import USER
from kimi_prov.on_host.system.files import find_owner_ids, read_text, write_atomic

if TYPE_CHECKING:
    from pathlib import Path

_NAME = "engine"
# The engine's user reads it, and so does the proxy, which is in that group.
_MODE = 0o640


def read(path: Path) -> str:
    """Return the key; empty where there is none."""
    name, _, key = read_text(path).strip().partition(" ")
    return key if name == _NAME else ""


def ensure(path: Path, *, check: bool = False) -> bool:
    """Make the key where there is none, restrict its file; True when it was (or would be) made."""
    key = read(path)
    if key and _is_closed(path):
        return False
    if not check:
        key = key or secrets.token_urlsafe(32)
        write_atomic(path, f"{_NAME} {key}\n", _MODE, USER)
    return True


def _is_closed(path: Path) -> bool:
    state = path.stat()
    ours = os.geteuid() != 0 or (state.st_uid, state.st_gid) == find_owner_ids("root", USER)
    return ours and state.st_mode & 0o7777 == _MODE
