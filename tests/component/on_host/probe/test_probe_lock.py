"""The lock that the probe takes on its way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kimi_prov.on_host.probe import collect
from kimi_prov.on_host.system import apply_lock

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def lock_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The lock of this test; the probe itself takes the machine's."""
    path = str(tmp_path / "lock")
    taking = apply_lock.acquire
    monkeypatch.setattr(apply_lock, "acquire", lambda holder: taking(holder, path))
    return path


def test_the_lock_is_taken_in_the_same_answer(
    lock_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect.main(["--lock", json.dumps({"run": "one"})]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["lock"]["held"] is True
    assert facts["schema"] == collect.SCHEMA
    assert apply_lock.release("two", lock_path) == {"held": False}
    assert collect.main(["--lock", json.dumps({"run": "two"})]) == 0
    refused = json.loads(capsys.readouterr().out)
    assert list(refused) == ["lock"]
    assert refused["lock"]["held"] is False
    assert refused["lock"]["holder"]["run"] == "one"
