"""A broken environment is seen: its mark alone does not say that it works."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.on_host.probe import installed
from kimi_prov.on_host.system import environments
from kimi_prov.on_host.system.machine import Machine

MACHINE = Machine()
RECORD = """\
../../../bin/tool,sha256=x,9
demo/__init__.py,sha256=x,5
demo/data.json,sha256=x,2
"demo/N=1,K=2.json",sha256=x,2
demo/kernel.abi3.so,sha256=x,7
single.py,sha256=x,1
demo-1.dist-info/RECORD,,
"""


def make_environment(folder: Path) -> Path:
    """Make an environment with one package, whole."""
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (folder / "bin/tool").write_text("#!/bin/sh")
    for name, text in {
        "demo/__init__.py": "x = 1",
        "demo/data.json": "{}",
        "demo/N=1,K=2.json": "{}",
        "demo/kernel.abi3.so": "library",
        "single.py": "1",
        "demo-1.dist-info/RECORD": RECORD,
    }.items():
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text(text)
    (folder / layout.ENV_COMPLETE).touch()
    return packages


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "engine-1"
    make_environment(place)
    return place


def find_fault(folder: Path) -> str | None:
    return environments.find_fault(MACHINE, str(folder))


def replace_python(folder: Path, script: str) -> None:
    python = folder / "bin/python"
    python.unlink()
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)


def remove(name: str):
    def act(folder: Path) -> None:
        (path,) = folder.glob(name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return act


def cut(name: str):
    def act(folder: Path) -> None:
        (path,) = folder.glob(name)
        path.write_text(path.read_text()[:3])

    return act


def point_elsewhere(folder: Path) -> None:
    (folder / "bin/python").unlink()
    (folder / "bin/python").symlink_to("/usr/bin/python-that-an-upgrade-took-away")


BREAKS = {
    "no interpreter": (remove("bin/python"), "does not run"),
    "an interpreter that an upgrade took away": (point_elsewhere, "does not run"),
    "an interpreter without its library": (lambda f: replace_python(f, "exit 1"), "does not run"),
    "another interpreter": (lambda f: replace_python(f, "echo 3.2"), "is Python 3.2"),
    "no console script": (remove("bin/tool"), "bin/tool is missing"),
    "no package": (remove("lib/python*/site-packages/demo"), "demo is missing"),
    "no module": (remove("lib/python*/site-packages/single.py"), "single.py is missing"),
    "no library": (remove("lib/python*/site-packages/demo/*.so"), "kernel.abi3.so is missing"),
    "half a library": (cut("lib/python*/site-packages/demo/*.so"), "has 3 bytes instead of 7"),
    "an empty RECORD": (
        lambda f: next(f.glob("lib/*/*/*/RECORD")).write_text(""),
        "RECORD is empty",
    ),
    "no packages at all": (remove("lib/python*/site-packages"), "it has no packages"),
    "no settings": (remove("pyvenv.cfg"), "pyvenv.cfg"),
}


def test_a_whole_environment_has_no_fault(folder: Path) -> None:
    assert find_fault(folder) is None


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_environment_is_told(folder: Path, name: str) -> None:
    act, expected = BREAKS[name]
    act(folder)
    fault = find_fault(folder)
    assert fault is not None
    assert expected in fault


def test_a_file_that_two_packages_bring_is_whole_with_the_size_of_either(folder: Path) -> None:
    """Else each apply would install an environment of gigabytes again."""
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "other-1.dist-info").mkdir()
    (packages / "other-1.dist-info/RECORD").write_text("demo/kernel.abi3.so,sha256=y,99\n")
    assert find_fault(folder) is None
    next(folder.glob("lib/python*/site-packages/demo/*.so")).write_text("x")
    assert "has 1 bytes instead of 7 or 99" in str(find_fault(folder))


def test_an_interpreter_that_is_slow_is_no_broken_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine must not remove an environment of gigabytes."""
    monkeypatch.setattr(environments, "_TIMEOUT_S", 0.2)
    replace_python(folder, "exec sleep 30")
    assert find_fault(folder) is None


@pytest.mark.parametrize("place", [layout.ENGINES, layout.WEB_ENVS, layout.TOOLS])
def test_the_probe_counts_a_broken_environment_as_absent(tmp_path: Path, place: str) -> None:
    key = {layout.ENGINES: "engine_envs", layout.WEB_ENVS: "web_envs", layout.TOOLS: "tools"}[place]
    machine = Machine(str(tmp_path))
    folders = [tmp_path / place[1:] / name for name in ("broken", "whole")]
    for folder in folders:
        make_environment(folder)
    assert installed.describe_installation(machine, {})[key] == ["broken", "whole"]
    (folders[0] / "bin/python").unlink()
    assert installed.describe_installation(machine, {})[key] == ["whole"]


def test_the_environment_of_these_tests_is_whole() -> None:
    """No installer's RECORD is taken for a fault: hundreds of packages, installed by uv."""
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert find_fault(Path(sys.prefix)) is None
