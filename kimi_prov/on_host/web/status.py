"""The web UI's part of `status`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.system.files import count_disk_bytes
from kimi_prov.on_host.web import backup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.status.host import WebUiStatus
    from kimi_prov.contract.paths import Paths


def build_document(paths: Paths, web: Mapping[str, Any], unit: Mapping[str, Any]) -> WebUiStatus:
    """Return the version that runs, its address, and its disk use in bytes.

    `web`: the plan's; `unit`: the state of its unit.
    """
    link = paths.web_env
    env_name = os.readlink(str(link)).rpartition("/")[2] if link.is_symlink() else None
    return {
        "name": web["name"],
        "version": env_name.rpartition("-")[0] if env_name else None,
        "planned_version": web["version"],
        "lock": web["lock"] if env_name == web["env_name"] else None,
        "environment": env_name,
        "port": web["port"],
        "signup": web["signup"],
        "answers": backup.is_answering(web["backend_port"]),
        "data": web["data"],
        "data_bytes": count_disk_bytes(paths.locate(web["data"])),
        "memory_bytes": unit.get("memory_bytes"),
        "admin_not_shown_yet": paths.web_admin_new.exists(),
    }
