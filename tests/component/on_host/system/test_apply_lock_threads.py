"""The apply lock of a machine, asked for by several at once: who comes late waits a moment."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kimi_prov.on_host.system import apply_lock

if TYPE_CHECKING:
    from pathlib import Path


def test_of_many_at_once_one_gets_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = []

    def try_it(number: int) -> None:
        held.append(apply_lock.acquire({"run": str(number)}, path)["held"])

    threads = [threading.Thread(target=try_it, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held.count(True) == 1
