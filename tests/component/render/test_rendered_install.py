"""Nothing is installed by a name that somebody else may own.

All that is rendered, or written onto a machine, installs by SHA-256. What is rendered is run, with
the real wheel and its real lock.
"""

from __future__ import annotations

import base64
import gzip
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import stand_in_python
import yaml

from kimi_prov import cli
from kimi_prov.show.exit_handling import run_guarded

ROOT = Path(__file__).parents[3]
SHEET = ROOT / "inventories" / "specs" / "reference-004.yml"
# What is filled in and written onto machines, and what the renders of all kinds and options gave.
WRITTEN = (
    "kimi_prov/render",
    "kimi_prov/packaging/image",
    "kimi_prov/on_host",
    "roles",
    "playbooks",
)
RENDERED = ("tests/data/golden/cloud", "tests/data/golden/kubernetes", "tests/data/golden/slurm")
_QUOTED = r"[\"']?,?\s+"
INSTALLS = re.compile(
    rf"\b(?:pip3?|uv){_QUOTED}(?:[\"']?-[^\s]*{_QUOTED})*[\"']?(?:pip{_QUOTED}[\"']?)?"
    r"(?:install|sync)\b"
)
NEVER = re.compile(
    r"(?:curl|wget)\b[^\n|]*\|\s*(?:sudo\s+)?(?:ba|da|z)?sh\b|\bnpm[\"']?,?\s+[\"']?(?:install|i|ci)\b"
    r"|\b(?:pipx|uvx|easy_install|apt-key|add-apt-repository)\b|\bkimi-prov==|trusted=yes"
    r"|--allow-unauthenticated|\bpip(?:x)?\s+install\s+git\+"
)


def find_unhashed(text: str) -> list[str]:
    """Give what a text installs without a digest."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith(("#", "//")))
    # In quotes of its own it is a word of a message.
    text = "\n".join(lines).replace('"pip install"', "")
    found = [match.group() for match in NEVER.finditer(text)]
    for match in INSTALLS.finditer(text):
        command = text[match.start() :].partition("\n\n")[0][:700]
        if "--require-hashes" not in command:
            found.append(command.partition("\n")[0])
    return found


def read_texts(folder: Path) -> dict[str, str]:
    """Give the files of a folder, those that user data packs among them."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix in (".pyc", ".whl", ".pyz", ".md"):
            continue
        # What people are told to do about a trouble is run by nobody.
        if path.name == "rows.json":
            continue
        text = path.read_text(errors="replace")
        found[str(path)] = text
        if path.name == "user-data":
            rows = yaml.safe_load(text)["write_files"]
            found |= {f"{path}:{row['path']}": _unpack(row) for row in rows}
    return found


def _unpack(row: dict[str, str]) -> str:
    content = row["content"]
    packed = row.get("encoding") == "gz+b64"
    return gzip.decompress(base64.b64decode(content)).decode() if packed else content


@pytest.mark.parametrize("folder", [*WRITTEN, *RENDERED])
def test_no_file_installs_without_a_digest(folder: str) -> None:
    texts = read_texts(ROOT / folder)
    assert texts
    found = {name: bad for name, text in texts.items() if (bad := find_unhashed(text))}
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        '"$venv/bin/pip" install -q -- kimi-prov==0.1.0',
        "~/kimi-prov/bin/pip install -q thing",
        '[python, "-m", "pip", "install", "thing"]',
        "- [uv, 'pip', 'install', '--quiet', 'thing']\n\n--require-hashes",
        "curl -fsSL https://example.com/install | sudo bash",
        "npm install thing",
    ],
)
def test_the_judge_sees_an_install_by_name(text: str) -> None:
    assert find_unhashed(text)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What SkyPilot brings to a machine, with the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("rendered") / "sky"
    python = stand_in_python.pack_running(folder.parent / "mirror")
    variables = folder.parent / "vars.yml"
    variables.write_text(
        "kimi_weights_source: gs://abc/kimi-k2.5\nkimi_context: 8192\n"
        f"kimi_python_mirror: {python.mirror}\n"
    )
    words = ["render", "skypilot", str(SHEET), "--vars", str(variables), "--output", str(folder)]
    words += ["--catalog", str(python.write_overlay(folder.parent / "catalogue"))]
    assert int(run_guarded(lambda: cli.cli.main(words, standalone_mode=False))) == 0
    return folder / "machine"


def install(machine: Path, place: Path, python: Path) -> subprocess.CompletedProcess[str]:
    """Run the rendered script as kimi-up and the seed's task do, on an image with this Python."""
    programs = place / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "python3").symlink_to(python)
    words = ["bash", machine / "usr/local/sbin/kimi-install", place / "venv", place / "wheels"]
    return subprocess.run(
        words,
        env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )


def find_python(version: str) -> Path:
    """The interpreter that an image has; one of pyenv, for the tests' own is 3.11."""
    if version == "own":
        return Path(sys.base_prefix) / "bin" / "python3"
    rows = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python{version}"))
    if not rows:
        pytest.skip(f"there is no Python {version} beside the one that runs this")
    return rows[-1]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["own", "3.10", "3.12", "3.13"])
def test_the_rendered_script_installs_the_wheel_that_rendered_it(
    version: str, machine: Path, tmp_path: Path
) -> None:
    """SkyPilot's images have Python 3.10, Debian 13 has 3.13: each gets the same CPython."""
    shutil.copytree(machine / "var/lib/kimi-up", tmp_path / "wheels")
    done = install(machine, tmp_path, find_python(version))
    assert done.returncode == 0, done.stderr
    program, pip, python = (tmp_path / "venv/bin" / name for name in ("kimi-prov", "pip", "python"))
    for words in ([program, "--version"], [program, "catalog", "clouds"], [pip, "check"]):
        told = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert told.returncode == 0, told.stdout + told.stderr
    assert (tmp_path / "venv-tools/python").resolve() in python.resolve().parents


def test_one_other_byte_in_the_wheel_and_nothing_is_installed(
    machine: Path, tmp_path: Path
) -> None:
    shutil.copytree(machine / "var/lib/kimi-up", tmp_path / "wheels")
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.write_bytes(content)
    done = install(machine, tmp_path, find_python("own"))
    assert done.returncode == 1
    assert "nothing of it is installed" in done.stderr
    assert not (tmp_path / "venv/bin/kimi-prov").exists()
