"""The page of what is proven, from docs/data/claims.yaml and docs/data/runs.yaml.

Decides: which claims the docs make, and what proves them.
Held by: tests/unit/docs/test_evidence.py.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from markup import anchor, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
FAST, SLOW, BY_HAND, NEVER = "make test", "make test-slow", "by hand", "never"
# The order in which a row names its commands.
_COMMANDS = (FAST, SLOW, "make gpu", "make demo", BY_HAND)


class EvidenceError(Exception):
    """A claim that nothing proves; the message names it."""


@dataclass(frozen=True)
class Run:
    """One run of tests: by which command, when, at which commit, with which result."""

    command: str
    date: str
    commit: str
    result: str
    name: str = ""
    machine: str = ""
    covers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """One claim with what proves it. `proofs`: command and date of each last run; none: never."""

    text: str
    tests: tuple[str, ...]
    proofs: tuple[tuple[str, str], ...]
    note: str


@dataclass(frozen=True)
class Section:
    """Claims of one subject. `short` says them in one sentence, `where` on what they were tried."""

    title: str
    short: str
    where: str
    claims: tuple[Claim, ...]


def runs(root: Path = ROOT) -> list[Run]:
    """Return every run, the newest first."""
    rows = _read(root, "runs.yaml")["runs"]
    found = [
        Run(**{**row, "date": str(row["date"]), "covers": tuple(row.get("covers", ()))})
        for row in rows
    ]
    return sorted(found, key=lambda run: run.date, reverse=True)


def sections(root: Path = ROOT) -> list[Section]:
    """Return every claim. Raises EvidenceError for a test or a run that does not exist."""
    known = runs(root)
    return [
        Section(
            title=row["title"],
            short=row["short"],
            where=row.get("where", ""),
            claims=tuple(_claim(claim, known, root) for claim in row["claims"]),
        )
        for row in _read(root, "claims.yaml")["sections"]
    ]


def _read(root: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(
        (root / "docs/data" / name).read_text(encoding="utf-8")
    )
    return document


def _claim(row: dict[str, str], known: Sequence[Run], root: Path) -> Claim:
    text, tests = row["claim"], tuple(row.get("tests", "").split())
    for test in tests:
        if not _exists(test, root):
            raise EvidenceError(f"{text} {test} does not exist")
    try:
        proofs = _proofs(row.get("run", ""), tests, known, root)
    except LookupError as error:
        raise EvidenceError(f"{text} {error.args[0]}") from None
    return Claim(text, tests, proofs, row.get("note", ""))


def _proofs(
    named: str, tests: Sequence[str], known: Sequence[Run], root: Path
) -> tuple[tuple[str, str], ...]:
    """Return command and date of the runs that prove a claim."""
    if named == NEVER:
        return ()
    if named.startswith(f"{BY_HAND} "):
        return ((BY_HAND, named.removeprefix(f"{BY_HAND} ")),)
    if named:
        run = next((run for run in known if run.name == named), None)
        if run is None:
            raise LookupError(f"runs.yaml has no run {named}")
        return ((run.command, run.date),)
    if not tests:
        raise LookupError("names no test and no run")
    found: dict[str, str] = {}
    for test in tests:
        command = SLOW if _is_slow(test, root) else FAST
        date = next(
            (run.date for run in known if run.command == command and _covers(run, test)), None
        )
        if date is None:
            raise LookupError(f"no run of {command} covers {test}")
        # What was run longest ago says how old the proof is.
        found[command] = min(date, found.get(command, date))
    return tuple(sorted(found.items(), key=lambda proof: _COMMANDS.index(proof[0])))


def _covers(run: Run, test: str) -> bool:
    file = test.partition("::")[0]
    return any(file == place or file.startswith(f"{place}/") for place in run.covers)


def _exists(test: str, root: Path) -> bool:
    path, _, name = test.partition("::")
    if not (root / path).exists():
        return False
    return not name or f"def {name}(" in (root / path).read_text(encoding="utf-8")


@cache
def _is_slow(test: str, root: Path) -> bool:
    """Whether `make test` leaves a test out: it is marked slow, or its whole file is."""
    path, _, name = test.partition("::")
    if not (root / path).is_file():
        return False
    tree = ast.parse((root / path).read_text(encoding="utf-8"))
    marked = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and "pytestmark" in map(ast.unparse, node.targets)
    ]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            marked += node.decorator_list
    return any("mark.slow" in ast.unparse(expression) for expression in marked)


def lines(root: Path = ROOT) -> list[str]:
    """Return the page: what is proven in short, what is not, the runs, and every claim."""
    found = sections(root)
    return [*_short(found), *_not_proven(found), *_runs(runs(root)), *_claims(found)]


def _short(found: Sequence[Section]) -> Iterator[str]:
    yield ""
    rows = []
    for section in found:
        proofs = [proof for claim in section.claims for proof in claim.proofs]
        commands = [command for command in _COMMANDS if command in {name for name, _ in proofs}]
        dates = sorted({date for _, date in proofs})
        when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        link = f"[{section.title}](#{anchor(section.title)})"
        rows.append((f"{link}: {section.short}", ", ".join(map(_command, commands)), when))
    yield from table(("what is proven", "by which command", "last run"), rows)


def _not_proven(found: Sequence[Section]) -> Iterator[str]:
    yield from ("", "## What nobody has run here", "")
    for section in found:
        for claim in section.claims:
            if not claim.proofs:
                note = f" ({claim.note})" if claim.note else ""
                yield f"- {claim.text.removesuffix('.')}{note}."


def _runs(found: Sequence[Run]) -> Iterator[str]:
    yield from ("", "## Runs", "")
    rows = (
        (
            _command(run.command),
            ": ".join(part for part in (run.name, run.machine) if part),
            run.date,
            run.commit,
            run.result,
        )
        for run in found
    )
    yield from table(("command", "on", "date", "commit", "result"), rows)


def _claims(found: Sequence[Section]) -> Iterator[str]:
    for section in found:
        yield from ("", f"## {section.title}", "")
        if section.where:
            yield from (section.where, "")
        proven = (claim for claim in section.claims if claim.proofs)
        yield from table(("claim", "proven by", "last run"), map(_row, proven))


def _row(claim: Claim) -> tuple[str, str, str]:
    tests = ", ".join(f"`{test}`" for test in claim.tests)
    last = ", ".join(f"{_command(name)} {date}" for name, date in claim.proofs)
    return claim.text, "; ".join(part for part in (tests, claim.note) if part), last


def _command(name: str) -> str:
    return f"`{name}`" if name.startswith("make ") else name
