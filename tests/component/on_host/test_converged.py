"""The one question by which a role knows that it has nothing to do."""

from __future__ import annotations

import hashlib
import io
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.on_host import converged

if TYPE_CHECKING:
    from pathlib import Path

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the files have to belong to root")


def wanted(path: Path, text: str) -> dict[str, Any]:
    return {"files": {str(path): hashlib.sha256(text.encode()).hexdigest()}}


@needs_root
def test_a_file_with_its_bytes_owner_and_mode_is_settled(tmp_path: Path) -> None:
    path = tmp_path / "unit"
    path.write_text("a")
    path.chmod(0o644)
    assert converged.find_difference(wanted(path, "a")) is None
    assert converged.find_difference(wanted(path, "b")) == str(path)
    path.chmod(0o600)
    assert converged.find_difference(wanted(path, "a")) == str(path)
    path.chmod(0o644)
    os.chown(path, 1, 0)
    assert converged.find_difference(wanted(path, "a")) == str(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert converged.find_difference(wanted(tmp_path / "no", "a")) == str(tmp_path / "no")


def test_a_unit_that_does_not_exist_is_named() -> None:
    assert converged.find_difference({"units": ["kimi-nothing.service"]}) == "kimi-nothing.service"


def test_weights_that_were_never_asked_for_are_said_to_be_missing() -> None:
    assert "weights.json" in (converged.find_difference({"weights": True}) or "")


def test_the_answer_is_one_line_of_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("{}"))
    assert converged.main([]) == 0
    assert json.loads(capsys.readouterr().out) == {"settled": True, "differs": None}
