"""A machine of files with a plan applied, whose systemctl says what a test tells it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from applied_machine import Applied

from kimi_prov.contract.paths import Paths

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Applied:
    """A machine that serves version 1."""
    stub = tmp_path / "bin" / "systemctl"
    stub.parent.mkdir()
    stub.write_text(
        f'#!/bin/sh\n[ "$1" = show ] || {{ echo "$@" >> {tmp_path}/told; '
        f'! grep -qxF "$*" {tmp_path}/refused; exit; }}\n'
        f'case "$*" in *kimi-switch*) echo Id=kimi-switch.service; cat {tmp_path}/switch;;\n'
        f"*) cat {tmp_path}/said;; esac\n"
    )
    stub.chmod(0o755)
    (tmp_path / "refused").write_text("")
    (tmp_path / "switch").write_text("ActiveState=inactive\n")
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    found = Applied(Paths(tmp_path))
    found.version("1")
    found.runs("active", "1")
    return found
