"""The cause of a failed start, found in a long journal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kimi_prov.on_host.system import units

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_cause_is_not_hidden_by_hundreds_of_killed_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lines = ["ValueError: too long", "bye"]
    lines += [
        f"kimi-serve@0.service: Killing process {n} (n/a) with signal SIGKILL." for n in range(900)
    ]
    (tmp_path / "journal").write_text("\n".join(lines) + "\n")
    tool = tmp_path / "journalctl"
    tool.write_text(
        "#!/bin/sh\nfor word; do case $word in --lines=*) n=${word#--lines=};; esac; done\n"
        f"exec tail -n $n {tmp_path}/journal\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert units.read_journal("kimi-serve@0.service", 2) == ["ValueError: too long", "bye"]
