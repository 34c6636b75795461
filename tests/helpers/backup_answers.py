"""What a machine answers to `backup` and `restore`, for tests of the commands."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from command_line import fails, gives

if TYPE_CHECKING:
    from command_line import Asked, Result

NO_PLAN = {"code": "failed", "message": "this machine is not provisioned", "fix": "apply"}


def told(asked: Asked) -> Result:
    """What a machine tells of its archive; what is restored is noted beside the home."""
    if asked.host == "bad":
        return fails("not provisioned", kimi=NO_PLAN)
    if source := asked.variables.get("backup_source"):
        shutil.copy(source, Path.home().parent / "brought")
    page = {"version": "0.12.4", "made_unix": 1800000000, "accounts": 2, "chats": 3}
    row = {"ok": True, "detail": "", "file": asked.variables["backup_file"], "bytes": 2048}
    row |= {"sha256": "ab", "encrypted_with": None, "hostname": "one", "made_unix": 1800000000}
    row |= {"keys": ["alice", "operator"], "certificate_sha256": "ab" * 32, "acme_account": True}
    row |= {"history": 3, "left_out": ["the certificate: it has ended"]}
    return gives({**row, "page": {**page, "uploads": 1, "left_out": []}})
