"""Docs hold: generated pages are current, links lead somewhere, what they name exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
import diagram
import pytest
from markup import anchor

from kimi_prov.cli import cli
from kimi_prov.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"(?<!`)!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
HOMES = ("kimi_prov/", "roles/", "playbooks/", "tests/", "inventories/", "docs/")


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page without its indented and fenced code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)) for heading in headings}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command line of kimi-prov in a block of code."""
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(r"^    (?:# )?(kimi-prov .*)$", text, flags=re.MULTILINE):
            for part in re.split(r"&&|\s\|\s", re.sub(r"\s+# .*", "", line)):
                words = shlex.split(part)
                if words[0] == "kimi-prov":
                    yield f"{by_name(page)}: {part.strip()}", words[1:]


# One case for the pages of a folder: there are more than a thousand.
of_a_folder = pytest.mark.parametrize(
    "pages",
    [[page for page in PAGES if page.parent == at] for at in sorted({p.parent for p in PAGES})],
    ids=lambda pages: by_name(pages[0].parent),
)


@of_a_folder
def test_no_row_of_a_table_is_wrapped(pages: list[Path]) -> None:
    torn = [
        f"{by_name(page)}: {line}"
        for page in pages
        for line in re.sub(r"`[^`\n]*`", "", prose(page)).splitlines()
        if "|" in line and not line.lstrip().startswith("|")
    ]
    assert torn == []


@of_a_folder
def test_links_lead_to_a_file_and_a_heading(pages: list[Path]) -> None:
    for page in pages:
        for target in LINK.findall(prose(page)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, heading = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), f"{by_name(page)}: {target}"
            assert not heading or heading in anchors(file), f"{by_name(page)}: {target}"


@of_a_folder
def test_paths_in_the_repository_exist(pages: list[Path]) -> None:
    # The changelog names what was, too.
    for page in (one for one in pages if one.name != "CHANGELOG.md"):
        for word in " ".join(CODE.findall(prose(page))).split():
            path, _, test = word.partition("::")
            if path.startswith(HOMES):
                files = list(ROOT.glob(path.rstrip("/")))
                assert files, f"{by_name(page)}: {word}"
                there = not test or f"def {test}(" in files[0].read_text()
                assert there, f"{by_name(page)}: {word}"


def test_the_index_names_every_page() -> None:
    index = DOCS / "README.md"
    # The alerts and the troubles have an index of their own.
    named = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in (index, DOCS / "alerts" / "README.md", DOCS / "troubles" / "README.md")
        for target in LINK.findall(prose(page))
    }
    assert {page for page in DOCS.rglob("*.md") if page not in named} == {index}


def test_commands_in_code_blocks_have_the_options_that_they_use() -> None:
    seen = 0
    for where, words in commands():
        command: click.Command = cli
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            command = command.commands[words.pop(0)]
        known = {name for option in command.params for name in option.opts} | {"--help"}
        used = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert used <= known, where
        seen += 1
    assert seen > 40


def test_the_page_of_exit_codes_has_each_of_them() -> None:
    rows = re.findall(r"^\| (\d+) \|", (DOCS / "reference/exit-codes.md").read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == [int(code) for code in ExitCode]


def test_troubleshooting_names_findings_and_messages_that_the_code_has() -> None:
    files = [f for kind in ("py", "yaml") for f in (ROOT / "kimi_prov").rglob(f"*.{kind}")]
    code = "\n".join(file.read_text() for file in files)
    page = prose(DOCS / "troubleshooting.md")
    ids = {word for word in CODE.findall(page) if re.fullmatch(r"[a-z_]+\.[a-z_]+", word)}
    assert {name for name in ids if f'"{name}"' not in code} == set()
    quoted = set(re.findall(r'"([^"\n`]+)"', page))
    assert {words for words in quoted if words not in code} == set()


def test_an_import_upwards_is_not_drawn(tmp_path: Path) -> None:
    for file, text in {
        "catalog/loader.py": "from house.planner import plan",
        "planner/plan.py": "",
    }.items():
        (tmp_path / "house" / file).parent.mkdir(parents=True)
        (tmp_path / "house" / file).write_text(text)
    with pytest.raises(ValueError, match=r"catalog\.loader imports planner\.plan"):
        diagram.packages(tmp_path / "house")


def test_the_picture_leaves_out_what_a_chain_of_arrows_implies() -> None:
    assert diagram.reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()})["a"] == {"b"}


def test_the_drawing_of_the_flow_names_units_that_the_roles_install() -> None:
    drawn = set(re.findall(r"kimi-[a-z]+|srv-kimi-ram", (DOCS / "images/flow.svg").read_text()))
    roles = "\n".join(
        str(file) + file.read_text() for file in (ROOT / "roles").rglob("*") if file.is_file()
    )
    assert {name for name in drawn - {"kimi-prov"} if name not in roles} == set()
