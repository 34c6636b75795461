"""What is told apart before a driver is installed: packages of a driver, and their versions."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.contract import paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.__main__ import main
from kimi_prov.on_host.driver import apt, steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Commands = Callable[..., Path]
    Capture = pytest.CaptureFixture[str]


def test_a_drivers_packages_are_told_from_tools_beside_them() -> None:
    have = {
        "nvidia-driver-cuda": "570.133.20-1",
        "libcuda1": "570.133.20-1",
        "libnvidia-compute-535-server": "535.247.01-0ubuntu1",
        "nvidia-fabricmanager-570": "570.133.20-1",
        "cuda-drivers-570": "570.133.20-1",
        "nvidia-settings": "1:535.171.04-1~deb12u1",
        "nvidia-container-toolkit": "1.17.8-1",
        "libnvidia-container1": "1.17.8-1",
        "nvidia-cuda-toolkit": "11.8.89~11.8.0-5",
        "nvidia-kernel-common": "20151021+13",
        "nvidia-fs": "2.24.2-1",
        "python3": "3.11.2-1",
    }
    others = ("container", "toolkit", "common", "-fs", "python3")
    wanted = {name for name in have if not any(word in name for word in others)}
    assert set(steps.select_driver_packages(have)) == wanted


@pytest.mark.parametrize(
    ("version", "bare"),
    [
        ("580.159.04-1", "580.159.04"),
        ("580.95.05-0ubuntu1", "580.95.05"),
        ("1:535.171.04-1~deb12u1", "535.171.04"),
        ("570.133.20", "570.133.20"),
    ],
)
def test_a_packages_version_without_what_the_packager_adds(version: str, bare: str) -> None:
    assert apt.parse_upstream(version) == bare


def asked(
    verb: str, question: dict[str, object], patch: pytest.MonkeyPatch, capsys: Capture, *more: str
) -> dict[str, object]:
    """Ask as the action plugin does; the answer is one JSON object."""
    patch.setattr("sys.stdin", io.StringIO(json.dumps(question)))
    main(["driver", verb, *more])
    return dict(json.loads(capsys.readouterr().out))


def refused(*arguments: Any) -> HostError:
    """The error that comes instead of an answer."""
    error = HostError.from_answer(asked(*arguments))
    assert error is not None
    return error


def test_the_rollback_is_that_of_this_version_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Packages kept before another upgrade are older than what ran before this one."""
    state, wanted = tmp_path / "driver.json", tmp_path / "wanted.json"
    kept = {"packages": {"libcuda1": "550.1.1-1"}, "version": "550.1.1", "whole": True}
    state.write_text(json.dumps({"version": "570.133.20", "previous": kept}))
    wanted.write_text(json.dumps({"version": "570.133.20", "words": [], "headers": []}))
    monkeypatch.setattr(paths, "DRIVER_STATE", str(state))
    monkeypatch.setattr(steps, "WANTED", str(wanted))
    question = {"version": "580.159.04", "why": "nvidia-smi does not answer"}
    error = refused("rollback", question, monkeypatch, capsys)
    assert "no rollback from 580.159.04 (nvidia-smi does not answer)" in error.message
