"""The file systems that `status` tells of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kimi_prov.contract import paths as layout
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.status import machine

if TYPE_CHECKING:
    from pathlib import Path


def test_each_file_system_is_told_once_by_the_first_folder_there(tmp_path: Path) -> None:
    for name in (layout.HOME, layout.ETC):
        (tmp_path / name[1:]).mkdir(parents=True)
    # What does not exist yet has no room that could be told.
    (row,) = machine.measure_disks(Paths(tmp_path))
    assert row["path"] == layout.HOME
    info = os.statvfs(tmp_path)
    assert row["size_bytes"] == info.f_blocks * info.f_frsize
    assert 0 <= row["free_bytes"] <= row["size_bytes"]
