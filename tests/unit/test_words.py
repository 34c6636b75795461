"""Words are the field's, and a function is a verb with its object.

A name that fails here has a better one: `read_plan` for `plan`, `format_size` for `human`. Where a
verb is missing in VERBS, add it. Nothing is added to NOT_YET, and no number is raised.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from source_nodes import PACKAGE, nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

# Rooms whose names were not gone through yet.
NOT_YET = {
    "cli.py",
    "commands",
    "schemas",
    "show",
}

# What a function's name begins with.
_VERBS = """
abort accept acquire act activate adapt add adjust admit adopt advance allow amend anchor
announce answer append apply archive arrange ask assemble assign await
balance begin bind bracket break build
calculate call can cancel capture catch change check choose classify clean clear close collect
combine compare compile complete compress compute configure confirm connect contain control
converge convert copy count create cut
decide decode decompress decrypt define delete dequantise derive describe detach detect did diff
disable discard discover divide download drain draw drop dump
edit emit enable encode encrypt end ensure enter escape estimate evaluate exclude execute exit
expand expect explain export extend extract
fail fetch fill filter find finish fit flatten flush fold follow forbid forget format free
freeze
gather generate get give go group guard
halt handle has hash hide hold
identify ignore import improve include index infer inspect install interpolate interpret invert
invoke is isolate iterate
join judge
keep kill
label launch leave limit link list listen load locate lock log look lower
main make map mark mask match may measure merge migrate mount move multiply must
name needs negotiate normalise normalize note notify
observe offer open order
pack pad parse partition pass patch pause pick pin place plan poll position post power predict
prefer prepare prepend price print probe process promote propose protect prove provide prune
publish pull put
quantise quarantine query queue quote
raise rank read reap rebuild receive reclaim record recover redact redirect reduce refill
refresh refuse register reject release reload remember remove rename render renew repair repeat
replace reply report represent request require reserve reset resolve restart restore resume
retire retry return reuse revert revoke rewrite roll rotate round run
sample save scale scan schedule score search select send serialize serve serves set settle shift
shorten should show shrink shut simulate size skip sleep slow sort split stack stage start stop
store stream strip submit subtract suggest sum supervise supports survey suspend sweep switch
sync
take tell terminate test time tokenize total touch transfer translate trim trust try tune
undo undrain unescape uninstall unlock unpack unregister unwrap update upgrade upload use
validate verify
wait wake walk warm warn was watch weigh widen withdraw wrap write
yield
"""
VERBS = frozenset(_VERBS.split())
CONVERSIONS = {"as", "from", "to"}

# Of functions and of methods.
BANNED = {
    *("asked", "at", "ended", "found", "given", "held", "judged", "kept", "listed", "made"),
    *("named", "near", "of", "own", "put_back", "said", "seen", "shown", "take", "told"),
    *("wanted", "whole"),
}
BANNED_MODULES = {
    *("back", "begin", "carried", "carrying", "door", "during", "ending", "following", "frame"),
    *("hand_changes", "handing_over", "host_turns", "judge", "judgement", "kimi_rest", "kimi_turn"),
    *("left_machines", "look", "natural", "new_sheet", "now", "page", "pictures", "place"),
    *("promise", "proof", "reach", "rest", "resting", "room", "standing", "together", "words"),
}
BANNED_CONSTANTS = re.compile(
    "(.*_)?(MOST|LONGEST|LARGEST|LEAST)(_.*)?|.*_(STEP|PAUSE|PATIENCE|ANSWER|APART)_S|_?APART_S"
)

CONSTANTS = "MAX_, MIN_, POLL_INTERVAL_S, TIMEOUT_S, MAX_CLOCK_SKEW_S"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# How often a variable or parameter has such a name: lower it with each that gets a better one.
VARIABLES = {
    "found": 588,
    "told": 157,
    "place": 86,
    "number": 126,
    "wanted": 87,
    "given": 60,
    "why": 63,
    "asked": 52,
    "whole": 30,
}


# What people read, and how often a private word or a form may still stand in it.
TEXTS = (
    ("kimi_prov", "*.py"),
    ("kimi_prov", "*.j2"),
    ("roles", "*.yml"),
    ("roles", "*.j2"),
    ("playbooks", "*.yml"),
    ("docs", "*.md"),
)
PHRASES = {
    r"- name: (Have|Note|Let) ": 0,
    r"\b[Ww]ish(es)?\b": 0,
    r"\b[Mm]ends?\b": 4,
    r"\b[Hh]arms?\b": 1,
    r"\b[Ss]tamps?\b": 36,
    r"\bmade model": 0,
    r"\b[Dd]oors?\b": 7,
    r"\bbook\b": 8,
    r"\bpictures?\b": 17,
}


def room(file: Path) -> str:
    """Return the folder below the package, or of on_host its room, or the loose file."""
    parts = file.relative_to(PACKAGE).parts
    return "/".join(parts[:2]) if parts[0] == "on_host" else parts[0]


def is_verb(name: str) -> bool:
    words = name.strip("_").split("_")
    return words[0] in VERBS or (words[0] in CONVERSIONS and len(words) > 1)


def bad_functions(tree: ast.Module) -> list[str]:
    functions = [node for node in tree.body if isinstance(node, FUNCTIONS)]
    return [f"{node.name}: begin with a verb" for node in functions if not is_verb(node.name)]


def bad_constants(tree: ast.Module) -> list[str]:
    targets = [
        target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
    ]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    names = [
        name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
    ]
    return [f"{name}: {CONSTANTS}" for name in names if BANNED_CONSTANTS.fullmatch(name)]


@functools.cache
def bad_names() -> dict[Path, list[str]]:
    bad = {}
    for file, (tree, *inside) in nodes().items():
        assert isinstance(tree, ast.Module)
        functions = [node.name for node in inside if isinstance(node, FUNCTIONS)]
        lines = [*bad_functions(tree), *bad_constants(tree)]
        lines += [f"{name}: a private word" for name in functions if name.strip("_") in BANNED]
        if file.stem in BANNED_MODULES:
            lines.append("the module's name: a private word")
        if lines:
            bad[file] = lines
    return bad


def test_names_are_the_fields() -> None:
    bad = [
        f"{file.relative_to(ROOT)}: {line}"
        for file, lines in bad_names().items()
        for line in lines
        if room(file) not in NOT_YET
    ]
    assert not bad, "\n".join(bad)


def test_a_room_that_was_gone_through_leaves_the_list() -> None:
    assert set() == NOT_YET - {room(file) for file in bad_names()}


@functools.cache
def variables() -> Counter[str]:
    # A key of a document is not ours to rename: others read it.
    files = [file for file in nodes() if "documents" not in file.parts]
    every = [node for file in files for node in nodes()[file]]
    names = [
        node.id for node in every if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    return Counter([*names, *(node.arg for node in every if isinstance(node, ast.arg))])


@pytest.mark.parametrize(("name", "ceiling"), VARIABLES.items())
def test_a_variable_says_what_it_holds(name: str, ceiling: int) -> None:
    assert variables()[name] <= ceiling


QUOTED = re.compile(r"(?m)^  log: \|\d?\n(?:^(?:    .*)?\n)*|^```text\n(?:(?!```).*\n)*")


def texts() -> Iterator[tuple[str, str]]:
    """Yield what people read: strings and comments of the code, tasks, templates and pages."""
    for folder, pattern in TEXTS:
        for file in sorted((ROOT / folder).rglob(pattern)):
            text = file.read_text(encoding="utf-8")
            # A line of a log is in the words of the program that writes it.
            if file.parent.name == "troubles":
                text = QUOTED.sub("", text)
            yield str(file.relative_to(ROOT)), text


@functools.cache
def phrases() -> Counter[str]:
    whole = "\n".join(text for _, text in texts())
    return Counter({phrase: len(re.findall(phrase, whole)) for phrase in PHRASES})


@pytest.mark.parametrize(("phrase", "ceiling"), PHRASES.items())
def test_texts_use_words_of_the_field(phrase: str, ceiling: int) -> None:
    assert phrases()[phrase] <= ceiling
