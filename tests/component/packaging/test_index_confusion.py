"""Of two places that offer one package, only the file whose digest is pinned is installed."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from plan_inputs import plan

from kimi_prov.packaging.resources import find_root

TASKS = find_root() / "roles" / "engine" / "tasks" / "install.yml"


def wheel(folder: Path, version: str, word: str) -> str:
    """Make a wheel of the package `thing`; gives its SHA-256."""
    folder.mkdir(exist_ok=True)
    info = f"thing-{version}.dist-info"
    files = {
        "thing.py": f"WORD = {word!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: thing\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{name},sha256={_digest(text)},{len(text)}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    path = folder / f"thing-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def flags() -> list[str]:
    """Flags of the role's own installation that carry no value of the plan."""
    task = TASKS.read_text().partition("Install the engine from hashed requirements")[2]
    found = re.findall(
        r"'(--(?:no-deps|require-hashes|only-binary=[^']+))'", task.partition("- name")[0]
    )
    assert "--require-hashes" in found
    return found


def test_a_newer_version_elsewhere_is_not_taken(tmp_path: Path) -> None:
    pin(tmp_path)
    wheel(tmp_path / "evil", "2.0", "evil")
    done = install(tmp_path, ["evil", "good"])
    assert done.returncode == 0, done.stderr
    assert "good" in (tmp_path / "into" / "thing.py").read_text()


@pytest.mark.parametrize("places", [["evil"], ["evil", "good"], ["good", "evil"]])
def test_another_file_of_that_name_and_version_is_not_taken(
    tmp_path: Path, places: list[str]
) -> None:
    pin(tmp_path)
    wheel(tmp_path / "evil", "1.0", "evil")
    done = install(tmp_path, places)
    installed = tmp_path / "into" / "thing.py"
    assert done.returncode == 0 or "Hash mismatch" in done.stderr
    assert not installed.exists() or "good" in installed.read_text()


def pin(folder: Path) -> None:
    """Make the good file and a lock that pins it."""
    digest = wheel(folder / "good", "1.0", "good")
    (folder / "lock").write_text(f"thing==1.0 \\\n    --hash=sha256:{digest}\n")


def install(folder: Path, places: list[str]) -> subprocess.CompletedProcess[str]:
    """Install the lock as the role does, from folders in place of indexes."""
    uv = str(Path(sys.executable).with_name("uv"))
    told = plan()["installation"]["uv_environment"]
    links = [f"--find-links={folder / place}" for place in places]
    command = [uv, "pip", "install", "--quiet", "--no-index", f"--python={sys.executable}"]
    return subprocess.run(
        [
            *command,
            f"--target={folder / 'into'}",
            *flags(),
            *links,
            f"--requirement={folder / 'lock'}",
        ],
        env={**os.environ, **told, "UV_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
