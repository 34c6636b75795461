"""What the probe tells of the files that roles write, and the lock that it takes on the way."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.contract import paths
from kimi_prov.on_host.probe import collect, installed
from kimi_prov.on_host.system import apply_lock
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from pathlib import Path


def told(root: Path) -> dict[str, Any]:
    """The facts about our own on a machine whose files lie under `root`."""
    return installed.describe_installation(Machine(str(root)), {})


def test_content_owner_and_mode_of_a_managed_file_are_facts(tmp_path: Path) -> None:
    unit = tmp_path / paths.UNITS[1:] / "kimi-proxy.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    unit.chmod(0o640)
    (tmp_path / "etc/passwd").write_text(f"me:x:{os.getuid()}:0::/:/bin/sh\nkimi-proxy:x:9:9::/:\n")
    (tmp_path / "etc/group").write_text(f"us:x:{unit.stat().st_gid}:\n")
    found = told(tmp_path)
    assert found["files"][f"{paths.UNITS}/kimi-proxy.service"] == {
        "sha256": hashlib.sha256(b"[Unit]\n").hexdigest(),
        "owner": "me",
        "group": "us",
        "mode": "0640",
    }
    assert found["files"][paths.FIREWALL] is None
    assert found["proxy_user"] is True
    assert found["user"] is False


def test_a_link_in_the_place_of_a_file_is_not_that_file(tmp_path: Path) -> None:
    path = tmp_path / paths.FIREWALL[1:]
    path.parent.mkdir(parents=True)
    (tmp_path / "other").write_text("a")
    path.symlink_to(tmp_path / "other")
    assert told(tmp_path)["files"][paths.FIREWALL] is None


def interpreter(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)


def environment(
    root: Path, name: str, home: str, *, complete: bool = True, below: str = paths.ENGINES
) -> None:
    """An environment as uv makes it, for the interpreter in `home`."""
    folder = root / below[1:] / name
    folder.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {home}\nimplementation = CPython\n")
    (folder / "lib/python3.12/site-packages").mkdir(parents=True)
    interpreter(folder / "bin/python")
    if complete:
        (folder / paths.ENV_COMPLETE).touch()


def test_an_environment_tells_which_interpreter_was_brought_for_it(tmp_path: Path) -> None:
    for name, complete in (("3.12.1-a", True), ("3.12.2-b", False), ("3.12.3-c", True)):
        folder = tmp_path / paths.PYTHONS[1:] / name
        interpreter(folder / "cpython/bin/python3")
        if complete:
            (folder / paths.ENV_COMPLETE).touch()
    environment(tmp_path, "own", "/usr/bin")
    environment(tmp_path, "brought", f"{paths.PYTHONS}/3.12.1-a/cpython-3.12.1/bin")
    environment(tmp_path, "half", f"{paths.PYTHONS}/3.12.1-a/cpython/bin", complete=False)
    environment(tmp_path, "lame", f"{paths.PYTHONS}/3.12.2-b/cpython-3.12.2/bin")
    environment(tmp_path, "lost", f"{paths.PYTHONS}/3.12.9-z/cpython-3.12.9/bin")
    found = told(tmp_path)
    # Without its interpreter an environment does not run: it counts as half made.
    assert found["engine_envs"] == ["brought", "own"]
    assert found["pythons"] == ["3.12.1-a", "3.12.3-c"]
    assert found["engine_pythons"] == {"brought": "3.12.1-a"}


def test_the_page_s_environments_tell_it_as_well(tmp_path: Path) -> None:
    there = tmp_path / paths.PYTHONS[1:] / "3.12.1-a"
    interpreter(there / "cpython/bin/python3")
    (there / paths.ENV_COMPLETE).touch()
    homes = {"own": "/usr/bin", "brought": f"{paths.PYTHONS}/3.12.1-a/cpython-3.12.1/bin"}
    homes["lost"] = f"{paths.PYTHONS}/3.12.9-z/cpython-3.12.9/bin"
    for name, home in homes.items():
        environment(tmp_path, name, home, below=paths.WEB_ENVS)
    (tmp_path / paths.WEB_ENV[1:]).symlink_to("brought")
    found = told(tmp_path)
    assert found["web_envs"] == ["brought", "own"]
    assert found["web_pythons"] == {"brought": "3.12.1-a"}
    assert found["web_link"] == "brought"


@pytest.fixture
def lock_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The lock of this test; the probe itself takes the machine's."""
    path = str(tmp_path / "lock")
    taking = apply_lock.acquire
    monkeypatch.setattr(apply_lock, "acquire", lambda holder: taking(holder, path))
    return path


def test_a_probe_that_fails_gives_its_lock_back(
    lock_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise OSError("the disk answers no more")

    giving = apply_lock.release
    monkeypatch.setattr(apply_lock, "release", lambda run: giving(run, lock_path))
    monkeypatch.setattr(collect, "describe", broken)
    with pytest.raises(OSError, match="no more"):
        collect.main(["--lock", json.dumps({"run": "one"})])
    assert not os.path.exists(lock_path)  # noqa: PTH110 - a name is what the lock takes
