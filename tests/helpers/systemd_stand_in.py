"""Stands in for systemd-run and systemctl where no systemd runs: no unit, and nothing protected."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract import paths

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

RUN = """#!/bin/sh
for word; do case $word in --property=EnvironmentFile=*) file=${{word#*=*=}};; esac; done
while [ "$1" != -- ]; do echo "$1" >> {0}/options; shift; done; shift
[ -z "$file" ] || stat -c %a "$file" > {0}/mode
echo $$ > {0}/pid
[ -z "$file" ] && exec "$@"
set -a; . "$file"; exec "$@"
"""
CONTROL = """#!/bin/sh
echo "$@" >> {0}/told
[ "$1" = stop ] && [ -e {0}/pid ] && kill -9 $(cat {0}/pid) 2>/dev/null
exit 0
"""


@dataclass
class StandIn:
    """What was asked of it."""

    folder: Path

    @property
    def options(self) -> list[str]:
        """The options of systemd-run."""
        return self._text("options").splitlines()

    @property
    def mode(self) -> str:
        """The mode of the environment's file while the unit started."""
        return self._text("mode").strip()

    @property
    def pid(self) -> int:
        """The process that ran, 0 before it does."""
        return int(self._text("pid") or 0)

    @property
    def runs(self) -> bool:
        """Whether it still does."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _text(self, name: str) -> str:
        file = self.folder / name
        return file.read_text() if file.exists() else ""


def systemd_stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Put it first in PATH."""
    folder.mkdir()
    for name, text in {"systemd-run": RUN, "systemctl": CONTROL}.items():
        (folder / name).write_text(text.format(folder))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(paths, "SANDBOX_ENVS", str(folder / "run" / "sandbox"))
    return StandIn(folder)
