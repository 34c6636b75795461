"""Names, paths, marks and users stand once, in the contract: roles read them from the plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kimi_prov.contract import paths, unit_names

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("defaults", "files", "tasks", "templates", "vars")
NAMES = [
    *unit_names.collect_units().values(),
    *paths.collect_paths().values(),
    *paths.collect_marks().values(),
]
# `kimi-fetch.service.j2` is a template of a role, `kimi/progress` no path.
NAME = re.compile(rf"(?<![\w./@-])({'|'.join(map(re.escape, NAMES))})(?![\w-]|\.j2)")
USER = re.compile(
    rf"\b(owner|group|User|Group|--uid)[:=] *({'|'.join(paths.collect_users().values())})\b"
)
INSTANCE = re.compile(re.escape(unit_names.SERVE_PREFIX) + r"(\d|\{\{)")


def files() -> list[Path]:
    found = [file for name in FOLDERS for file in ROOT.glob(f"roles/*/{name}/**/*")]
    return sorted(file for file in [*found, *ROOT.glob("playbooks/**/*.yml")] if file.is_file())


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_role_reads_names_from_the_plan(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not re.match(r"\s*(#|//)", line)]
    spelt = [line for line in lines for wanted in (NAME, USER, INSTANCE) if wanted.search(line)]
    assert spelt == []


def test_what_downloads_in_a_unit_does_so_under_its_name() -> None:
    """By the name the next apply finds what a killed one has left running, and ends it."""
    seen = 0
    for file in files():
        for use in re.findall(r"installation\.run\b(.*)", file.read_text()):
            assert "'--unit=' ~ kimi_plan.units.install" in use, file
            seen += 1
    assert seen == 5
