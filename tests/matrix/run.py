"""Tries the package under each Python with each ansible-core that it takes: `make matrix`.

    python tests/matrix/run.py [--python PATH...] [--pairs 3.12/2.20...]

A virtual environment is made for each pair, by uv, with the built wheel in it; there, `smoke.py`
and the tests of what runs in Ansible, or runs it. Pythons are those that uv or pyenv has on this
machine, and those named by `--python`. A pair whose Python is nowhere is named as not tried. Exits
1 where a pair failed, or none could be tried.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# What start Ansible, load our plugins by it, or read what it writes.
SUITES = tuple(
    f"tests/{suite}/{folder}" for suite in ("unit", "component") for folder in ("ansible", "runner")
)
TOOLS = ("hypothesis", "pytest", "pytest-timeout")
# Lowest minor version of Python 3, as each series' own metadata says (Requires-Python).
LOWEST_PYTHON = {"2.19": 11, "2.20": 12, "2.21": 12}


def pairs(project: Path) -> list[tuple[str, str]]:
    """Each Python that the package names with each series of ansible-core that it takes there."""
    declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(declared["classifiers"]))
    wanted = next(
        found
        for found in map(Requirement, declared["dependencies"])
        if found.name == "ansible-core"
    )
    series = [f"2.{n}" for n in range(100) if wanted.specifier.contains(f"2.{n}.0")]
    return [
        (python, ansible)
        for python in pythons
        for ansible in series
        if int(python.partition(".")[2]) >= LOWEST_PYTHON[ansible]
    ]


def interpreters(more: Iterable[str]) -> dict[str, str]:
    """Path of each Python that is here, by its version such as 3.12; what was named goes first."""
    listing = subprocess.run(
        ["uv", "python", "list", "--only-installed", "--output-format", "json"],
        check=False,
        capture_output=True,
        text=True,
    )
    known = [row["path"] for row in json.loads(listing.stdout or "[]")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    found: dict[str, str] = {}
    for path in [*more, *known, *map(str, sorted(pyenv.glob("3.*/bin/python")))]:
        # One that is listed may be a stub of pyenv's, which leads nowhere.
        done = subprocess.run([path, "-c", question], check=False, capture_output=True, text=True)
        if done.returncode == 0:
            found.setdefault(done.stdout.strip(), path)
    return found


def trial(ansible: str, interpreter: str, wheel: Path, folder: Path) -> str | None:
    """Try one pair in a new environment; what failed, or None."""
    programs = folder / "bin"
    install = ("uv", "pip", "install", "-q", "--python", str(programs / "python"))
    for step in (
        ("uv", "venv", "-q", "--python", interpreter, str(folder)),
        (*install, str(wheel), f"ansible-core=={ansible}.*", *TOOLS),
        (str(programs / "python"), str(HERE / "smoke.py"), str(programs / "kimi-prov")),
        (str(programs / "pytest"), "-q", "-p", "no:cacheprovider", *SUITES),
    ):
        done = subprocess.run(step, check=False, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            return f"{' '.join(step)}\n{done.stdout[-6000:]}{done.stderr[-6000:]}"
    return None


def main(argv: Sequence[str]) -> int:
    """Try every pair, also after one that failed."""
    parser = argparse.ArgumentParser(description="Try each Python with each ansible-core.")
    parser.add_argument("--python", action="append", default=[], metavar="PATH")
    parser.add_argument("--pairs", nargs="+", metavar="3.12/2.20")
    given = parser.parse_args(argv)
    wanted = pairs(ROOT / "pyproject.toml")
    if given.pairs:
        wanted = [pair for pair in wanted if "/".join(pair) in given.pairs]
    here = interpreters(given.python)
    for python, ansible in wanted:
        if python not in here:
            _say(python, ansible, "not tried: no such Python on this machine")
    wanted = [pair for pair in wanted if pair[0] in here]
    if not wanted:
        return 1
    failed = False
    with tempfile.TemporaryDirectory(prefix="kimi-prov-matrix-") as name:
        build = [sys.executable, "-m", "build", "-q", "--wheel", "--no-isolation"]
        subprocess.run([*build, "--outdir", name, str(ROOT)], check=True, stdout=subprocess.DEVNULL)
        wheel = next(Path(name).glob("*.whl"))
        for pair in wanted:
            began = time.monotonic()
            fault = trial(pair[1], here[pair[0]], wheel, Path(name) / "-".join(pair))
            took = f"{here[pair[0]]}, {time.monotonic() - began:.0f} s"
            _say(*pair, f"{'FAILED' if fault else 'works'} ({took})")
            if fault:
                failed = True
                sys.stderr.write(f"{fault}\n")
    return 1 if failed else 0


def _say(python: str, ansible: str, what: str) -> None:
    sys.stdout.write(f"Python {python}, ansible-core {ansible}: {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
